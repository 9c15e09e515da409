// Prints schedules as text and reads them back.
#include "layout/parts.h"
#include "layout/walk.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- print --------------------------------------------------------------------------------------------

static void print_stages(const Schedule *schedule, Text *out) {
    int p = schedule->num_ranks, v = schedule->num_chunks;
    bool usual = true;
    for (int stage = 0; stage < p * v; stage++)
        usual &= schedule->stage_place[stage] == stage % p * v + stage / p;
    if (usual) return;
    text_add(out, "stages:");
    for (int stage = 0; stage < p * v; stage++)
        text_add(out, " %d.%d", schedule->stage_place[stage] / v, schedule->stage_place[stage] % v);
    text_add(out, "\n");
}

void schedule_print(const Schedule *schedule, Text *out) {
    print_stages(schedule, out);
    for (int r = 0; r < schedule->num_ranks; r++) {
        const Program *program = &schedule->programs[r];
        text_add(out, "%d:", r);
        for (int i = 0; i < program->count; i++) {
            char text[16];
            instr_print(schedule, program->instrs[i], text);
            text_add(out, " %s", text);
        }
        text_add(out, "\n");
    }
}

// ---- parse --------------------------------------------------------------------------------------------

typedef struct {
    int rank, chunk;
} StagePlace;

// Collects lines and words; the sizes are known only at the end.
typedef struct {
    const char *at;
    int line;
    char word[24]; // printable; a longer one ends in "..."
    Program *programs;
    int num_ranks, rank_capacity;
    StagePlace *stage_places; // of stage 0, 1, ... as the file names them
    int num_stage_places, stage_place_capacity;
    int num_chunks, num_microbatches;
    bool has_messages;
} Parser;

static Status bad_word(const Parser *parser, const char *expected) {
    return fail(ERR_DATA, "line %d, \"%s\": expected %s", parser->line, parser->word, expected);
}

// Moves to the next word of the line. Returns false at the end of the line or at a comment.
static bool next_word(Parser *parser) {
    parser->at += strspn(parser->at, " \t\r");
    if (*parser->at == '#') parser->at += strcspn(parser->at, "\n");
    size_t length = strcspn(parser->at, " \t\r\n#"), kept = sizeof parser->word - 4;
    for (size_t i = 0; i < length && i < kept; i++)
        parser->word[i] = (char)(isprint((unsigned char)parser->at[i]) ? parser->at[i] : '?');
    strcpy(parser->word + (length < kept ? length : kept), length > kept ? "..." : "");
    parser->at += length;
    return length > 0;
}

// Reads a number below `limit` of one or more digits.
static bool read_number(const char **at, int limit, int *value) {
    const char *start = *at;
    for (*value = 0; isdigit((unsigned char)**at); ++*at) {
        *value = 10 * *value + (**at - '0');
        if (*value >= limit) return false;
    }
    return *at > start;
}

// Reads an optional chunk: "" or ".3".
static bool read_chunk(const char **at, int *chunk) {
    *chunk = 0;
    if (**at != '.') return true;
    ++*at;
    return read_number(at, SCHEDULE_MAX_CHUNKS, chunk);
}

static void *grow(void *items, int count, int *capacity, size_t size) {
    if (count < *capacity) return items;
    *capacity = *capacity ? 2 * *capacity : 16;
    void *grown = realloc(items, (size_t)*capacity * size);
    CHECK(grown, "no memory for %d items of a schedule", *capacity);
    return grown;
}

static void saw_chunk(Parser *parser, int chunk) {
    if (chunk >= parser->num_chunks) parser->num_chunks = chunk + 1;
}

static bool read_op(const char **at, ScheduleOp *op) {
    size_t letters = 0;
    while (isalpha((unsigned char)(*at)[letters])) letters++;
    for (*op = 0; *op < NUM_SCHEDULE_OPS; ++*op) {
        const char *text = schedule_ops[*op].text;
        if (strlen(text) == letters && !memcmp(text, *at, letters)) break;
    }
    *at += letters;
    return *op < NUM_SCHEDULE_OPS;
}

static Status parse_instr(Parser *parser, Program *program) {
    const char *at = parser->word;
    ScheduleOp op;
    int microbatch = -1, chunk;
    if (!read_op(&at, &op)) return bad_word(parser, "an instruction: rf F sf rb B I W sb or R");
    bool numbered = schedule_ops[op].kind != REDUCE;
    if (numbered && !read_number(&at, SCHEDULE_MAX_MICROBATCHES, &microbatch))
        return bad_word(parser, "a microbatch from 0 to 999999 after the letters");
    if (!read_chunk(&at, &chunk))
        return bad_word(parser, "nothing more, or a chunk such as .1 (at most .63)");
    bool pairs = *at == '+';
    if (pairs) at++;
    if (*at) return bad_word(parser, "nothing more, a chunk such as .1 (at most .63), or + for a pair");
    saw_chunk(parser, chunk);
    if (microbatch >= parser->num_microbatches) parser->num_microbatches = microbatch + 1;
    parser->has_messages |= schedule_ops[op].kind == SEND || schedule_ops[op].kind == RECV;
    program_add(program, (Instr){.op = (uint8_t)op,
                                 .chunk = (uint8_t)chunk,
                                 .peer = -1,
                                 .microbatch = microbatch,
                                 .pairs = pairs});
    return OK;
}

static Status parse_stages(Parser *parser) {
    if (parser->num_stage_places) return bad_word(parser, "one such line at most");
    while (next_word(parser)) {
        const char *at = parser->word;
        StagePlace place;
        if (!read_number(&at, SCHEDULE_MAX_RANKS, &place.rank) || !read_chunk(&at, &place.chunk) || *at)
            return bad_word(parser, "rank.chunk, the place of the next stage");
        if (parser->num_stage_places == SCHEDULE_MAX_RANKS * SCHEDULE_MAX_CHUNKS)
            return bad_word(parser, "fewer stages");
        parser->stage_places =
            grow(parser->stage_places, parser->num_stage_places, &parser->stage_place_capacity, sizeof place);
        parser->stage_places[parser->num_stage_places++] = place;
        saw_chunk(parser, place.chunk);
    }
    return OK;
}

static Status parse_program(Parser *parser) {
    const char *at = parser->word;
    int rank;
    char expected[32];
    snprintf(expected, sizeof expected, "\"%d:\" or \"stages:\"", parser->num_ranks);
    if (!read_number(&at, SCHEDULE_MAX_RANKS, &rank) || strcmp(at, ":") || rank != parser->num_ranks)
        return bad_word(parser, expected);
    parser->programs = grow(parser->programs, rank, &parser->rank_capacity, sizeof *parser->programs);
    parser->programs[parser->num_ranks++] = (Program){0};
    while (next_word(parser)) TRY(parse_instr(parser, &parser->programs[rank]));
    return OK;
}

static Status parse_lines(Parser *parser) {
    for (;; parser->at++, parser->line++) {
        if (next_word(parser))
            TRY(strcmp(parser->word, "stages:") ? parse_program(parser) : parse_stages(parser));
        if (!*parser->at) return OK;
    }
}

// ---- from lines to a schedule ---------------------------------------------------------------------------

static Status place_stages(const Parser *parser, Schedule *schedule) {
    int p = schedule->num_ranks, v = schedule->num_chunks;
    if (!parser->num_stage_places) return OK;
    if (parser->num_stage_places != p * v)
        return fail(ERR_DATA, "stages: %d places for %d ranks of %d chunks", parser->num_stage_places, p, v);
    for (int place = 0; place < p * v; place++) schedule->stage[place] = -1;
    for (int stage = 0; stage < p * v; stage++) {
        StagePlace at = parser->stage_places[stage];
        int place = at.rank * v + at.chunk;
        if (at.rank >= p)
            return fail(ERR_DATA, "stages: %d.%d, but there are %d ranks", at.rank, at.chunk, p);
        if (schedule->stage[place] >= 0)
            return fail(ERR_DATA, "stages: %d.%d holds two stages", at.rank, at.chunk);
        schedule->stage[place] = stage;
        schedule->stage_place[stage] = place;
    }
    return OK;
}

static void name_peers(Schedule *schedule) {
    for (int r = 0; r < schedule->num_ranks; r++) {
        Program *program = &schedule->programs[r];
        for (int i = 0; i < program->count; i++) {
            Instr *in = &program->instrs[i];
            OpKind kind = schedule_ops[in->op].kind;
            if (kind == SEND || kind == RECV)
                in->peer = (int16_t)schedule_partner(schedule, r, in->chunk, (ScheduleOp)in->op);
        }
    }
}

static Status assemble(Parser *parser, Schedule *schedule) {
    if (!parser->num_microbatches)
        return fail(ERR_DATA, "no instructions: expected lines such as \"0: F0 B0\"");
    schedule_shape(schedule, parser->num_ranks, parser->num_chunks, parser->num_microbatches);
    memcpy(schedule->programs, parser->programs, (size_t)parser->num_ranks * sizeof *parser->programs);
    parser->num_ranks = 0;
    TRY(place_stages(parser, schedule));
    if (parser->has_messages)
        name_peers(schedule);
    else
        schedule_lower(schedule, 0);
    return schedule_prove(schedule);
}

Status schedule_parse(Schedule *schedule, const char *text) {
    Parser parser = {.at = text, .line = 1};
    *schedule = (Schedule){0};
    if (strlen(text) > SCHEDULE_MAX_BYTES)
        return fail(ERR_DATA, "a schedule of more than %d bytes", SCHEDULE_MAX_BYTES);
    Status status = parse_lines(&parser);
    if (status == OK) status = assemble(&parser, schedule);
    if (status != OK) schedule_destroy(schedule);
    for (int r = 0; r < parser.num_ranks; r++) free(parser.programs[r].instrs);
    free(parser.programs);
    free(parser.stage_places);
    return status;
}
