// Stands in for NVIDIA's driver (libcuda.so.1) in the test of cuDNN's plans: cuDNN loads a plan's finished code when the
// plan is made. Here that succeeds, and nothing can run.
//
// Which functions there are is the program's matter alone: no other one ever loads this library.

enum { SUCCESS = 0, STUB_LIBRARY = 34 }; // CUresult

// Functions whose first argument is where they return a handle or a number.
#define RETURNS_ONE(name)                                                                                    \
    int name(void **result);                                                                                 \
    int name(void **result) {                                                                                \
        static char object;                                                                                  \
        *result = &object;                                                                                   \
        return SUCCESS;                                                                                      \
    }
#define RETURNS_ZERO(name)                                                                                   \
    int name(int *result);                                                                                   \
    int name(int *result) { return *result = 0, SUCCESS; }
#define DOES_NOTHING(name)                                                                                   \
    int name(void);                                                                                          \
    int name(void) { return SUCCESS; }
#define CANNOT(name)                                                                                         \
    int name(void);                                                                                          \
    int name(void) { return STUB_LIBRARY; }

RETURNS_ONE(cuLibraryLoadData)
RETURNS_ONE(cuLibraryGetKernel)
RETURNS_ONE(cuKernelGetFunction)
RETURNS_ONE(cuModuleLoadData)
RETURNS_ONE(cuModuleLoadDataEx)
RETURNS_ONE(cuModuleGetFunction)
RETURNS_ZERO(cuKernelGetAttribute)
RETURNS_ZERO(cuFuncGetAttribute)
DOES_NOTHING(cuKernelSetAttribute)
DOES_NOTHING(cuFuncSetAttribute)
DOES_NOTHING(cuLibraryUnload)
DOES_NOTHING(cuModuleUnload)
DOES_NOTHING(cuTensorMapEncodeTiled)
DOES_NOTHING(cuTensorMapEncodeIm2col)
CANNOT(cuCtxGetCurrent)
CANNOT(cuCtxGetLimit)
CANNOT(cuCtxPopCurrent)
CANNOT(cuCtxPushCurrent)
CANNOT(cuDeviceGet)
CANNOT(cuDeviceGetCount)
CANNOT(cuDriverGetVersion)
CANNOT(cuGetErrorName)
CANNOT(cuGetErrorString)
CANNOT(cuLaunchCooperativeKernel)
CANNOT(cuLaunchKernel)
CANNOT(cuLaunchKernelEx)
CANNOT(cuLibraryLoadFromFile)
CANNOT(cuLinkAddData)
CANNOT(cuLinkComplete)
CANNOT(cuLinkCreate)
CANNOT(cuLinkDestroy)
CANNOT(cuOccupancyMaxPotentialClusterSize)
CANNOT(cuStreamGetCtx)
