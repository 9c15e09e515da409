// Says what slow nodes cost a planned run: against an even fleet, at which place least, and with fewer layers there.
#include "plan/memory.h"
#include "report/plan_report.h"
#include <stdlib.h>

// ---- the layout ---------------------------------------------------------------------------------

static void add_stage(int layers, bool is_first, bool is_last, Text *out) {
    text_add(out, "%s%s", is_first ? "" : "|", is_first ? "E" : "");
    if (layers == 1) text_add(out, "t");
    if (layers > 1) text_add(out, "t*%d", layers);
    if (is_last) text_add(out, "L");
}

Status plan_report_layout(const PlanReport *a, const ParallelConfig *config, Text *out) {
    int stages = grid_along(config->grid, AXIS_PP) * config->chunks;
    int *layers = calloc((size_t)stages, sizeof *layers);
    if (!layers) return fail(ERR_OS, "no memory for %d stages", stages);
    Status status = parallel_config_layers(a->costs->stack, a->model, config, layers);
    for (int stage = 0; status == OK && stage < stages; stage++)
        add_stage(layers[stage], stage == 0, stage == stages - 1, out);
    free(layers);
    return status;
}

// ---- words --------------------------------------------------------------------------------------

static void add_slowness(const SlowNodes *slow, Text *out) {
    const struct {
        const char *words;
        double factor;
    } kinds[] = {{"computing takes", slow->compute},
                 {"messages over their NICs take", slow->nic},
                 {"messages between them and others take", slow->uplink}};
    int count = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].factor > 1)
            text_add(out, count++ ? ", %s %g times" : "%s %g times as long", kinds[i].words, kinds[i].factor);
    if (!count) text_add(out, "as fast as the others");
}

static void add_place(const PlanReport *a, SlowPlace place, Text *out) {
    const Machine *machine = a->costs->machine;
    int ranks = grid_along(a->chosen->config.grid, AXIS_PP);
    int64_t block = parallel_config_devices(&a->chosen->config) / ranks;
    int first = (int)(place.first * block / machine->devices_per_node);
    if (ranks == 1)
        text_add(out, "any place, since there is one pipeline rank");
    else if (place.count >= ranks)
        text_add(out, "any place, since all pipeline ranks are on them");
    else if (place.count == 1)
        text_add(out, "pipeline rank %d of %d, from node %d on (counted from 0)", place.first, ranks, first);
    else
        text_add(out, "pipeline ranks %d to %d of %d, from node %d on (counted from 0)", place.first,
                 place.first + place.count - 1, ranks, first);
}

static void add_step(const char *name, double step_s, double even_s, Text *out) {
    text_add(out, "  %-18s %10.4g s, %+.1f %%", name, step_s, 100 * (step_s / even_s - 1));
}

static const char *why_not_spared(const ParallelConfig *config) {
    if (config->slow.count >= grid_along(config->grid, AXIS_PP))
        return "All stages wait for them alike: no cut of the layers spares them.";
    if (parallel_config_kind(config)->stage)
        return "The schedule places its stages itself: no other cut of the layers was tried.";
    return "Fewer layers on them make no faster step that fits.";
}

void plan_report_slow_nodes(const PlanReport *a, Text *out) {
    const SlowNodes *slow = &a->costs->slow;
    const Prediction *p = a->chosen;
    if (!slow->nodes) return;
    text_add(out, "\nSlow nodes: %d, ", slow->nodes);
    add_slowness(slow, out);
    text_add(out, "\n  %-18s %10.4g s\n", "an even fleet", p->even_s);
    add_step("at the best place", p->step_s, p->even_s, out);
    text_add(out, ": "), add_place(a, p->config.slow, out);
    text_add(out, "\n");
    if (p->worst_s > 1.0005 * p->step_s) {
        add_step("at the worst", p->worst_s, p->even_s, out);
        text_add(out, ": "), add_place(a, p->worst, out);
        text_add(out, "\n");
    }
    if (!a->spared) {
        if (slow->compute > 1) text_add(out, "  %s\n", why_not_spared(&p->config));
        return;
    }
    add_step("fewer layers there", a->spared->step_s, p->even_s, out);
    text_add(out, ": %d for each of their stages, such as\n    --pipeline-model-parallel-layout \"",
             a->spared->config.slow.layers);
    if (plan_report_layout(a, &a->spared->config, out) != OK) text_add(out, "?");
    text_add(out, "\"\n");
}
