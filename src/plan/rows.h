// Pieces of measured rows: which of the shipped machines a row was measured on.
#pragma once
#include "plan/plan.h"

// Fills `machine` of every row: of the shipped machines with its GPU and as many in a node, the one whose
// network is nearest to the row's; the fastest network where the row does not tell its own, since a NIC per
// GPU is usual. A GPU that no machine has leaves it "". What machine_open returns.
Status rows_find_machines(PlanRows *rows);
