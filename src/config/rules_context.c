// The rules of context parallelism: which sequences can be cut, and what a run with cut sequences cannot have.
#include "config/rules.h"
#include <string.h>

// Returns the least multiple of `unit` that is at least `value`.
static int up_to_multiple(int value, int unit) { return (value + unit - 1) / unit * unit; }

static Status refuse(const Options *o, const char *option, const char *why) {
    return fail(ERR_CONFIG,
                "--context-parallel-size %d and %s cannot be set at the same time: %s; leave out one of them",
                o->context_parallel_size, option, why);
}

static Status check_context_length(const Options *o) {
    int c = o->shape.cp, s = o->seq_length, t = o->shape.sequence_parallel ? o->shape.tp : 1, fits = c;
    int unit = t > 1 && t % 2 ? 2 * c * t : t > 1 ? c * t : 2 * c;
    if (s % (2 * c) == 0 && s / c % t == 0) return OK;
    while (fits > 1 && (s % (2 * fits) || s / fits % t)) fits--;
    return fail(
        ERR_CONFIG,
        "--context-parallel-size %d%s: --seq-length %d is not divisible by %d, so that ranks cannot have equal "
        "shares: use --seq-length %d, or --context-parallel-size %d",
        c, t > 1 ? " with --sequence-parallel" : "", s, unit, up_to_multiple(s, unit), fits);
}

Status check_context_parallel(Options *o) {
    enum { MOST = 2048 }; // MAX_CONTEXT_RANKS of layout/sequence.h
    if (o->shape.cp == 1) return OK;
    if (o->shape.cp > MOST)
        return fail(ERR_CONFIG, "--context-parallel-size %d: at most %d ranks can share a sequence",
                    o->shape.cp, MOST);
    TRY(check_context_length(o));
    if (strcmp(o->cp_comm_type, "all_gather") != 0)
        return fail(ERR_CONFIG,
                    "--cp-comm-type %s: ranks share keys and values by all_gather alone; leave it out",
                    o->cp_comm_type);
    if (o->shape.virtual_data)
        return refuse(o, "--virtual-data-parallel", "its sums would depend on the data parallel size");
    if (o->audit_interval > 0) return refuse(o, "--audit-interval", "an audit computes whole sequences");
    if (o->dpo) return refuse(o, "--dpo", "the loss of a pair needs whole answers on one rank");
    if (o->fp8_format || o->fp4_format)
        return refuse(o, o->fp8_format ? "--fp8-format" : "--fp4-format",
                      "the scale of a tensor would be that of a part of its tokens");
    return OK;
}
