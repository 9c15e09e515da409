// A module of a device that belongs to another build of the program.
#include "device/module.h"

static const Backend backend = {.name = "cuda-sim"};

extern const DeviceModule trireme_device;
const DeviceModule trireme_device = {"0123456789abcdef", {&backend, &backend}};
