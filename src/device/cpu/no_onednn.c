// Matrix products in fp32 where a build has no oneDNN: those of product.c, of the instruction set that the kernels use.
#include "base/text.h"
#include "device/cpu/cpu.h"
#include <string.h>

void cpu_product_baseline_F32(const Product *product);
#ifdef TRIREME_X86_LEVELS
extern const Backend cpu_backend_v3_F32, cpu_backend_v4_F32;
void cpu_product_v3_F32(const Product *product);
void cpu_product_v4_F32(const Product *product);
#endif
#ifdef TRIREME_ARM_LEVELS
void cpu_product_sve256_F32(const Product *product);
void cpu_product_sve512_F32(const Product *product);
#endif

void cpu_product_f32(const Product *p) {
#ifdef TRIREME_X86_LEVELS
    const Backend *kernels = cpu_best()->of[F32];
    if (kernels == &cpu_backend_v4_F32) {
        cpu_product_v4_F32(p);
        return;
    }
    if (kernels == &cpu_backend_v3_F32) {
        cpu_product_v3_F32(p);
        return;
    }
#endif
#ifdef TRIREME_ARM_LEVELS
    const char *isa = cpu_best()->isa;
    if (strstr(isa, "sve512")) {
        cpu_product_sve512_F32(p);
        return;
    }
    if (strstr(isa, "sve256")) {
        cpu_product_sve256_F32(p);
        return;
    }
#endif
    cpu_product_baseline_F32(p);
}

// They wake no thread, and obey TRIREME_MAX_CPU_ISA alone.
void cpu_products_alone(void) {}
const char *cpu_products_limit(void) { return NULL; }
void cpu_limit_products(const char *name) { (void)name; }
bool cpu_may_use_bf16(void) { return strstr(cpu_best()->isa, "bf16"); }
bool cpu_may_use_amx(void) { return strstr(cpu_best()->isa, "amx"); }
void cpu_describe_onednn(Text *out) { text_add(out, "products in fp32 of its own"); }
