// Matrix products in fp32 by oneDNN, 2.x or 3.x: its BLAS-like call, which both have.
#include "device/cpu/cpu.h"
#include <dnnl.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

void cpu_products_alone(void) { omp_set_num_threads(1); }

static bool is_set(const char *variable) {
    const char *value = getenv(variable);
    return value && *value;
}

const char *cpu_products_limit(void) {
    return is_set("ONEDNN_MAX_CPU_ISA") ? "ONEDNN_MAX_CPU_ISA"
           : is_set("DNNL_MAX_CPU_ISA") ? "DNNL_MAX_CPU_ISA"
                                        : NULL;
}

void cpu_limit_products(const char *name) {
    static const struct {
        const char *name;
        dnnl_cpu_isa_t isa;
    } limits[] = {{"avx512_bf16", dnnl_cpu_isa_avx512_core_bf16},
                  {"avx512", dnnl_cpu_isa_avx512_core},
                  {"avx2", dnnl_cpu_isa_avx2},
                  {"baseline", dnnl_cpu_isa_sse41}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits && !cpu_products_limit(); i++)
        if (!strcmp(name, limits[i].name)) dnnl_set_max_cpu_isa(limits[i].isa);
}

static bool may_use(unsigned units) { return ((unsigned)dnnl_get_effective_cpu_isa() & units) == units; }

bool cpu_may_use_bf16(void) { return may_use(dnnl_cpu_isa_avx512_core_bf16); }

bool cpu_may_use_amx(void) { return may_use(dnnl_cpu_isa_avx512_core_amx); }

void cpu_describe_onednn(Text *out) {
    const dnnl_version_t *version = dnnl_version();
    text_add(out, "oneDNN %d.%d.%d with instruction set 0x%x", version->major, version->minor, version->patch,
             (unsigned)dnnl_get_effective_cpu_isa());
}

static char letter(Factor x) { return x.transpose ? 'T' : 'N'; }

void cpu_product_f32(const Product *p) {
    dnnl_status_t status = dnnl_sgemm(letter(p->a), letter(p->b), p->rows, p->cols, p->inner, 1, p->a.data,
                                      p->a.stride, p->b.data, p->b.stride, p->adds, p->d, p->stride);
    CHECK(status == dnnl_success, "oneDNN's product [%lld, %lld, %lld] returned %d", (long long)p->rows,
          (long long)p->cols, (long long)p->inner, (int)status);
}
