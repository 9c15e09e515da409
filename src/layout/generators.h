// Functions that the files of the schedule kinds share.
#pragma once
#include "layout/kinds.h"
#include "layout/parts.h"

// ScheduleKind.bubble of the schedules that do not split backwards: (p - 1) / (v m).
double bubble_unsplit(const ScheduleSpec *spec);
