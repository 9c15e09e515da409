// What the whole run of a plan takes: time, energy and money.
#include "report/plan_report.h"
#include "report/plan_words.h"
#include <math.h>

static const double HOUR_S = 3600;

double plan_report_seconds(const PlanReport *a, double step_s) {
    return step_s * a->tokens / ((double)a->space->batch * a->model->sequence) / a->goodput;
}

double plan_report_dollars(const PlanReport *a, double step_s) {
    return plan_report_seconds(a, step_s) / HOUR_S * a->space->devices * a->price;
}

double plan_report_kwh(const PlanReport *a, double step_s) {
    double hours = plan_report_seconds(a, step_s) / HOUR_S * a->space->devices;
    return hours * machine_watts(a->costs->machine) / 1e3 * a->pue;
}

void add_power(const Machine *machine, double pue, Text *out) {
    text_add(out, "%.5g W for a %s %s", machine_watts(machine), device_word(machine),
             machine->node_watts > 0 ? "with its share of a node" : "alone, without the rest of a node");
    if (pue > 1) text_add(out, ", times %.4g for the data centre", pue);
}

// Data sheets state what is drawn at most, and no run draws that all the time.
static void print_energy(const PlanReport *a, Text *out) {
    double kwh = plan_report_kwh(a, a->chosen->step_s);
    if (kwh <= 0) return;
    text_add(out, "  %-18s at most ", "energy");
    add_energy(kwh, out);
    text_add(out, ", at ");
    add_power(a->costs->machine, a->pue, out);
    text_add(out, "\n");
}

void plan_report_run(const PlanReport *a, Text *out) {
    const Prediction *p = a->chosen;
    if (a->tokens <= 0) return;
    text_add(out, "\nThe whole run\n  %-18s ", "tokens");
    add_short(a->tokens, out);
    text_add(out, ", %.0f steps\n  %-18s ", ceil(a->tokens / a->space->batch / a->model->sequence), "time");
    add_duration(plan_report_seconds(a, p->step_s), out);
    text_add(out, " (");
    add_duration(plan_report_seconds(a, p->low_s), out), text_add(out, " to ");
    add_duration(plan_report_seconds(a, p->high_s), out);
    text_add(out, a->goodput < 1 ? "), %.3g %% of it" : "), all of it", 100 * a->goodput);
    text_add(out, " training\n");
    print_energy(a, out);
    if (a->price <= 0) return;
    text_add(out, "  %-18s $", "cost");
    add_short(plan_report_dollars(a, p->step_s), out);
    text_add(out, " ($");
    add_short(plan_report_dollars(a, p->low_s), out);
    text_add(out, " to $");
    add_short(plan_report_dollars(a, p->high_s), out);
    text_add(out, ") at $%.2f for a %s hour\n", a->price, device_word(a->costs->machine));
}
