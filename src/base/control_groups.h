// The control groups of this process: where Linux limits what a container, a service or a job may use.
#pragma once
#include <stdbool.h>
#include <stdint.h>

// Looks at one group: `folder` has its files, of version 2 or 1 of the control groups.
typedef void VisitControlGroup(void *self, const char *folder, bool second);
// Visits the groups of this process for a controller ("memory", "cpu"), from the innermost to the root, since the
// limits of all of them hold. `root` is "", or the folder of a tree that is laid out like /proc and /sys.
void control_groups_visit(const char *root, const char *controller, VisitControlGroup *visit, void *self);
// Returns how many processors' time the groups' quotas leave to this process (cpu.max, cpu.cfs_quota_us), rounded down
// but at least 1; INT32_MAX where there is no quota.
int control_groups_processors(const char *root);
