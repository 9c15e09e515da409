// Adds to the survey of a GPU where it is in the machine.
#include "device/survey.h"

static void keep(char *to, size_t bytes, Text *text) {
    snprintf(to, bytes, "%s", text_string(text));
    text_free(text);
}

void survey_place(GpuSurvey *gpu, const char *sysfs) {
    Cores cores;
    Text list = {0}, networks = {0};
    gpu->node = pci_node(sysfs, gpu->pci);
    pci_cores(sysfs, gpu->pci, &cores);
    cores_print(&cores, &list);
    gpu->network_near = pci_networks(sysfs, gpu->pci, &networks);
    keep(gpu->cores, sizeof gpu->cores, &list);
    keep(gpu->network, sizeof gpu->network, &networks);
}
