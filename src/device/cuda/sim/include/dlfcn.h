// The part of the dynamic loader that the CUDA device calls, for builds without a GPU: sim/libraries.cc simulates it,
// so that NVIDIA's libraries are the simulated ones, found where a user would have put theirs.
#pragma once
#ifdef __cplusplus
extern "C" {
#endif

enum { RTLD_LOCAL = 0, RTLD_NOW = 2 };

void *sim_dlopen(const char *file, int mode);
void *sim_dlsym(void *library, const char *name);
const char *sim_dlerror(void);

#define dlopen  sim_dlopen
#define dlsym   sim_dlsym
#define dlerror sim_dlerror

#ifdef __cplusplus
}
#endif
