// What the CUDA device has of NVIDIA's NCCL (nccl.c).
#pragma once
#include "device/cuda/cuda.h"

extern const LinkBackend nccl_links;
void nccl_survey(LibrarySurvey *library); // says whether the library is there
