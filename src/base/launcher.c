// Reads the environment variables by which launchers number the processes of a job.
#include "base/launcher.h"
#include "base/hash.h"
#include "base/text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The first of these environment variables that is a number, or -1.
static int from_environment(const char *const *names, int count) {
    for (int i = 0; i < count; i++) {
        const char *text = getenv(names[i]);
        int64_t value;
        if (text && parse_int(text, &value) && value >= 0 && value <= INT32_MAX) return (int)value;
    }
    return -1;
}

static int number(const char *name) { return from_environment(&name, 1); }

bool launcher_is_variables(void) { return number("RANK") >= 0 && number("WORLD_SIZE") > 1; }

static int mpirun_ranks(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"};
    return from_environment(names, 3);
}

// Slurm sets SLURM_NTASKS in the batch script too; only srun's processes have a step and a process number.
bool launcher_is_srun(void) { return getenv("SLURM_STEP_ID") && getenv("SLURM_PROCID"); }

// Some of srun's plugins for MPI set PMI_SIZE.
bool launcher_is_mpirun(void) {
    return mpirun_ranks() > 0 && (getenv("OMPI_COMM_WORLD_SIZE") || !launcher_is_srun());
}

int launcher_ranks(void) {
    if (launcher_is_variables()) return number("WORLD_SIZE");
    int ranks = mpirun_ranks();
    if (ranks < 1 && launcher_is_srun()) ranks = number("SLURM_NTASKS");
    return ranks > 0 ? ranks : 0;
}

int launcher_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK",
                                        "SLURM_PROCID"};
    if (launcher_is_variables()) return number("RANK");
    int rank = launcher_ranks() ? from_environment(names, 4) : 0;
    return rank > 0 ? rank : 0;
}

int launcher_ranks_here(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "MV2_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"};
    int all = launcher_ranks();
    int here = launcher_is_variables() ? number("LOCAL_WORLD_SIZE") : from_environment(names, 4);
    return here > 0 ? here : all > 0 ? all : 1;
}

void launcher_wait_for_rank_0(void) { sleep(3); }

// ---- where the ranks meet ---------------------------------------------------------------------------------

// The first name of a list of Slurm's: "gpu[07-09,12],cpu1" is gpu07.
static void first_node(const char *list, char *name, size_t size) {
    size_t length = 0;
    for (const char *c = list; *c && *c != ',' && length + 1 < size; c++) {
        if (*c != '[') {
            name[length++] = *c;
            continue;
        }
        size_t digits = strcspn(++c, "-,]");
        for (size_t i = 0; i < digits && length + 1 < size; i++) name[length++] = c[i];
        c += strcspn(c, "]");
        if (!*c) break;
    }
    name[length] = 0;
}

static uint64_t job_number(const char *first, const char *second) {
    char text[256];
    const char *a = getenv(first), *b = second ? getenv(second) : NULL;
    snprintf(text, sizeof text, "%s.%s", a ? a : "", b ? b : "");
    return a ? hash64_of(text, strlen(text)) : 0;
}

// torchrun itself listens at the port then.
static bool agent_listens(void) {
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    return agent && !strcmp(agent, "True");
}

static Status by_variables(char *host, size_t host_size, int *port, uint64_t *job) {
    const char *address = getenv("MASTER_ADDR");
    int rank = launcher_rank(), ranks = launcher_ranks();
    if (rank >= ranks)
        return fail(ERR_CONFIG, "RANK=%d of WORLD_SIZE=%d: ranks are numbered from 0 to %d", rank, ranks,
                    ranks - 1);
    if (!address || !*address || *port < 1)
        return fail(
            ERR_CONFIG,
            "WORLD_SIZE=%d, but %s does not say where rank 0 is to be found: set MASTER_ADDR to its machine "
            "and MASTER_PORT to a free port of it, 1 to 65535, on all ranks",
            ranks, *port < 1 ? "MASTER_PORT" : "MASTER_ADDR");
    snprintf(host, host_size, "%s", address);
    *job = job_number("TORCHELASTIC_RUN_ID", NULL);
    *port += agent_listens();
    return OK;
}

static Status by_slurm(char *host, size_t host_size, int *port, uint64_t *job) {
    const char *address = getenv("MASTER_ADDR"), *nodes = getenv("SLURM_STEP_NODELIST");
    enum { FIRST_PORT = 20000, PORTS = 10000 };
    *job = job_number("SLURM_JOB_ID", "SLURM_STEP_ID");
    if (*port < 1) *port = FIRST_PORT + (int)(*job % PORTS);
    if (!nodes) nodes = getenv("SLURM_JOB_NODELIST");
    if (address && *address)
        snprintf(host, host_size, "%s", address);
    else
        first_node(nodes ? nodes : "", host, host_size);
    return *host
               ? OK
               : fail(ERR_CONFIG, "srun does not say on which nodes the ranks are (SLURM_STEP_NODELIST): set "
                                  "MASTER_ADDR to that of rank 0");
}

Status launcher_meeting(char *host, size_t host_size, uint16_t *port, uint64_t *job) {
    const char *text = getenv("MASTER_PORT");
    int at = number("MASTER_PORT"), last = UINT16_MAX - (launcher_is_variables() && agent_listens());
    if (text && *text && (at < 1 || at > last))
        return fail(ERR_CONFIG, "MASTER_PORT=%s is no port: use 1 to %d, the same on all ranks", text, last);
    TRY((launcher_is_variables() ? by_variables : by_slurm)(host, host_size, &at, job));
    *port = (uint16_t)at;
    return OK;
}
