// Finds the shipped machine on which a row was measured, by its GPU and network.
#include "calibrate/rows.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char name[MAX_NAME], gpu[MAX_NAME];
    int devices_per_node;
    double node_gbs;
} Node;

static Status read_nodes(Node *nodes) {
    Machine *machine = malloc(sizeof *machine);
    if (!machine) return fail(ERR_OS, "no memory for a machine");
    Status status = OK;
    for (int i = 0; status == OK && i < num_shipped_machines; i++) {
        status = machine_open(machine, shipped_machines[i].name);
        if (status != OK) break;
        nodes[i] = (Node){.devices_per_node = machine->devices_per_node,
                          .node_gbs = machine->nics * machine->nic_gbs};
        memcpy(nodes[i].name, machine->name, sizeof nodes[i].name);
        memcpy(nodes[i].gpu, machine->gpu, sizeof nodes[i].gpu);
        machine_close(machine);
    }
    free(machine);
    return status;
}

// Rows may leave out a GPU's memory: "b200" stands for "b200-180gb".
static bool is_gpu(const char *gpu, const char *wanted) {
    size_t length = strlen(wanted);
    return length && !strncmp(gpu, wanted, length) && (!gpu[length] || gpu[length] == '-');
}

// The distance of a node from the row's: the logarithm of the ratio of their network bandwidths.
static double distance(const Node *node, const PlanRow *row) {
    if (!is_gpu(node->gpu, row->gpu) || node->devices_per_node != row->devices_per_node) return INFINITY;
    double gbs = fmax(node->node_gbs, 1e-6);
    return row->node_gbs > 0 ? fabs(log(gbs / row->node_gbs)) : -log(gbs);
}

static void find_machine(const Node *nodes, PlanRow *row) {
    double least = INFINITY;
    for (int i = 0; i < num_shipped_machines; i++) {
        double d = distance(&nodes[i], row);
        if (d >= least) continue;
        least = d;
        memcpy(row->machine, nodes[i].name, sizeof row->machine);
    }
}

Status rows_find_machines(PlanRows *rows) {
    Node *nodes = calloc((size_t)num_shipped_machines + 1, sizeof *nodes);
    if (!nodes) return fail(ERR_OS, "no memory for %d machines", num_shipped_machines);
    Status status = read_nodes(nodes);
    for (int i = 0; status == OK && i < rows->count; i++) find_machine(nodes, &rows->items[i]);
    free(nodes);
    return status;
}
