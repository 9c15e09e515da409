// Starts the ranks of a job with MPI: finds out which MPI's launcher has started this process, loads the library and
// the module of that MPI, and says what to install where there is none.
#include "base/beside.h"
#include "base/libraries.h"
#include "comm/mpi_module.h"
#include <ctype.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef enum { OPENMPI, MPICH, NUM_KINDS, NO_KIND = NUM_KINDS } MpiKind;

enum { MAX_SONAMES = 2 };

static const struct {
    const char *name, *module;
    // Those of its binary interface; Debian has a name of its own for MPICH's.
    const char *sonames[MAX_SONAMES];
    const char *folder; // of the library that was there when this program was built; "": unknown
    const char *package, *built_with; // Debian's
} kinds[NUM_KINDS] = {
    [OPENMPI] = {"Open MPI",
                 "trireme_mpi_openmpi.so",
                 {"libmpi.so.40"},
                 OPENMPI_FOLDER,
                 "openmpi-bin",
                 "libopenmpi-dev"},
    [MPICH] = {"MPICH",
               "trireme_mpi_mpich.so",
               {"libmpi.so.12", "libmpich.so.12"},
               MPICH_FOLDER,
               "mpich",
               "libmpich-dev"},
};

// ---- which one --------------------------------------------------------------------------------------------

// The kind of the launcher that has started this process, where only that kind can connect its ranks.
static MpiKind launcher_kind(void) {
    if (getenv("OMPI_COMM_WORLD_SIZE")) return OPENMPI;
    if (!launcher_is_srun() && launcher_ranks() && getenv("PMI_RANK")) return MPICH;
    return NO_KIND;
}

// Sets the kinds to try, in this order, and returns their number. Slurm speaks with both: by PMIx, which every Open MPI
// and few builds of MPICH know, or by PMI2, where it is the other way round.
static int kinds_to_try(MpiKind order[NUM_KINDS]) {
    MpiKind sure = launcher_kind();
    bool by_pmi2 = launcher_is_srun() && getenv("PMI_RANK") && !getenv("PMIX_RANK");
    order[0] = sure != NO_KIND ? sure : by_pmi2 ? MPICH : OPENMPI;
    order[1] = order[0] == OPENMPI ? MPICH : OPENMPI;
    return sure != NO_KIND ? 1 : NUM_KINDS;
}

// ---- loading ----------------------------------------------------------------------------------------------

// Opens MPI's library: from the folder that TRIREME_MPI names, or where the system finds it, or where it was when this
// program was built. NULL: there is none.
static void *open_library(MpiKind kind, int flags) {
    const char *chosen = getenv("TRIREME_MPI");
    const char *folders[] = {chosen ? chosen : "", kinds[kind].folder};
    void *library = NULL;
    for (int f = 0; f < (chosen ? 1 : 2) && !library; f++)
        for (int i = 0; i < MAX_SONAMES && kinds[kind].sonames[i] && !library; i++) {
            Text path = {0};
            text_add(&path, "%s%s%s", folders[f], *folders[f] ? "/" : "", kinds[kind].sonames[i]);
            library = dlopen(text_string(&path), flags);
            text_free(&path);
        }
    return library;
}

// The loader says which file it could not load, and why.
static Status fail_without_library(MpiKind kind) {
    const char *reason = dlerror();
    return fail(
        ERR_UNAVAILABLE,
        "%s needs its library, which cannot be loaded (%s): install it (Debian's package is %s), or name its "
        "folder with TRIREME_MPI",
        kinds[kind].name, reason ? reason : "no reason is known", kinds[kind].package);
}

static Status find_module(MpiKind kind, Text *path) {
    if (beside_find(NULL, kinds[kind].module, path)) return OK;
    return fail(
        ERR_UNAVAILABLE,
        "%s needs the file %s, and there is none at %s, in the folder above or where both are installed: "
        "copy it from the folder in which trireme was built; where that has none, install the headers "
        "of %s (Debian's package is %s) and build again",
        kinds[kind].name, kinds[kind].module, text_string(path), kinds[kind].name, kinds[kind].built_with);
}

static Status open_module(MpiKind kind, const char *path, const MpiModule **module) {
    // MPI loads parts of itself, which take functions from what is loaded.
    if (!open_library(kind, RTLD_NOW | RTLD_GLOBAL)) return fail_without_library(kind);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return fail(ERR_DATA, "%s: the module cannot be loaded: %s", kinds[kind].name, dlerror());
    *module = dlsym(library, "trireme_mpi");
    if (!*module) return fail(ERR_DATA, "%s: %s is no module of trireme", kinds[kind].name, path);
    if (strcmp((*module)->interface, MPI_INTERFACE) != 0)
        return fail(
            ERR_DATA,
            "%s: %s belongs to another build of trireme (interface %s, this program has %s); build both together",
            kinds[kind].name, path, (*module)->interface, MPI_INTERFACE);
    return OK;
}

static Status load(MpiKind kind, const MpiModule **module) {
    Text path = {0};
    Status status = find_module(kind, &path);
    if (status == OK) status = open_module(kind, text_string(&path), module);
    text_free(&path);
    return status;
}

// Loads the first of the kinds that can be had; else fails as for the first of them. A module that is wrong ends the
// search: its library has been loaded by then, and another kind's module would take functions from that.
static Status load_any(const MpiModule **module) {
    MpiKind order[NUM_KINDS];
    int count = kinds_to_try(order);
    for (int i = 0; i < count; i++) {
        Status status = load(order[i], module);
        if (status != ERR_UNAVAILABLE) return status;
    }
    return load(order[0], module);
}

bool mpi_is_here(void) {
    const MpiModule *module;
    return load_any(&module) != ERR_UNAVAILABLE;
}

Status mpi_launch(const CommOptions *options, RankMain *rank_main, void *arg) {
    const MpiModule *module;
    Status status = load_any(&module);
    if (status == OK) return module->launch(options, rank_main, arg);
    return fail(
        status,
        "a run of %d processes under mpirun needs MPI: %s; or start the ranks with RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT, which need no MPI",
        launcher_ranks(), fail_message());
}

// ---- for people -------------------------------------------------------------------------------------------

// The first line of what the library says of itself: "Open MPI v4.1.4, package: ..." and "MPICH Version:      5.0.2".
static void add_version(Text *out, void *library) {
    int (*version)(char *, int *) = NULL;
    char text[8192] = ""; // MPI_MAX_LIBRARY_VERSION_STRING of any kind
    int length = 0;
    *(void **)&version = dlsym(library, "MPI_Get_library_version");
    if (!version || version(text, &length) != 0) return;
    text[strcspn(text, ",\n")] = 0;
    text_add(out, "mpi (");
    for (const char *c = text; *c; c++)
        if (!isspace((unsigned char)*c) || !isspace((unsigned char)c[1]))
            text_add(out, "%c", *c == '\t' ? ' ' : *c);
    text_add(out, ")");
}

void mpi_describe(Text *out) {
    for (MpiKind kind = 0; kind < NUM_KINDS; kind++) {
        Text path = {0};
        Status status = find_module(kind, &path);
        void *library = status == OK ? open_library(kind, RTLD_LAZY | RTLD_LOCAL) : NULL;
        if (status == OK && !library) fail_without_library(kind);
        text_add(out, "            ");
        if (library)
            add_version(out, library);
        else
            text_add(out, "no mpi: %s", fail_message());
        text_add(out, "\n");
        text_free(&path);
    }
}
