// `trireme --version`: what this program was built from, and what it can use on this machine. Nothing is tried that
// takes time: `trireme devices` tries the GPUs.
#include "base/version.h"
#include "base/libraries.h"
#include "cli/cli.h"
#include "comm/mpi_module.h"
#include "device/device.h"
#include "device/module.h"
#include <stdio.h>
// "commit/commit.h" of the build's folder, made by cmake/commit.cmake.
#include <commit.h>

static void add_devices(Text *out) {
    Text module = {0};
    text_add(out, "devices     cpu (");
    device_arithmetic("cpu", out);
    text_add(out, ")\n");
    if (module_find("cuda", "trireme_cuda.so", &module) == OK)
        text_add(out, "            cuda (%s; `trireme devices` tries it)\n", text_string(&module));
    else
        text_add(out,
                 "            no cuda: there is no trireme_cuda.so, which is built where nvcc is found\n");
    text_free(&module);
}

Status print_version(void) {
    Text text = {0};
    char build[64];
    build_id(build, sizeof build);
    text_add(&text, "%s\n", TRIREME_VERSION);
    text_add(&text, "commit      %s\n",
             *SOURCE_COMMIT ? SOURCE_COMMIT : "unknown: it was not built in a checkout");
    text_add(&text, "build       %s\n", build);
    add_devices(&text);
    text_add(&text, "transports  threads, tcp\n");
    mpi_describe(&text);
    libraries_describe(&text);
    fputs(text_string(&text), stdout);
    text_free(&text);
    return OK;
}
