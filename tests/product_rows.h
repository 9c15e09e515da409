// Which products of the cpu backend give a row the same bits whatever the number of rows, so that laws of equal bits hold
// where ranks or rounds divide the rows: those of the program's own kernels. oneDNN takes other kernels for few rows, and
// AMX makes no products of few rows.
#pragma once
#include "device/cpu/cpu.h"
#include <string.h>

static inline bool cpu_keeps_rows(DType dtype) {
    const CpuVariant *kernels = cpu_best(); // before oneDNN is asked, which this limits
    if (cpu_factor_type(dtype) == BF16) return !strstr(kernels->isa, "amx");
    Text text = {0};
    cpu_describe_onednn(&text);
    bool own = !strstr(text.data, "oneDNN");
    text_free(&text);
    return own;
}
