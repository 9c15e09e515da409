// `trireme generate --chat`: answers messages, --prompt or the lines of standard input, by the model's chat template.
#include "base/array.h"
#include "corpus/chat_format.h"
#include "infer/generate.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_MESSAGE_BYTES = 16 << 20,
    PROMPT_PIECE = 512,    // tokens that the model sees at once
    MOST_POSITIONS = 8192, // of a conversation: keys and values of each take memory
    LOOK_MS = 100,         // between two looks at signals, while nobody writes
};
// Ranks wait for the user.
static const double PATIENCE_S = 30.0 * 24 * 3600;

typedef struct {
    const char *role;
    Text content;
} Message;

typedef struct {
    const ModelJob *job;
    Comm *world;
    int capacity, longest; // tokens of the conversation, of one call
    Infer *infer;
    TokenList ends, prompt, seen; // seen: what the model has been given
    int64_t num_answers, new_tokens;
    double new_s;
    // Of rank 0.
    ChatFormat format;
    ChatWorker worker;
    Message *messages;
    size_t num_messages, room;
    Text input;      // what was read and is not used yet
    bool input_over; // there is no more
} Chat;

static bool is_first(const Chat *chat) { return comm_rank(chat->world) == 0; }

// ---- messages -----------------------------------------------------------------------------------

static void add_message(Chat *chat, const char *role, const char *content, size_t size) {
    array_grow(&chat->messages, sizeof *chat->messages, chat->num_messages + 1, &chat->room);
    Message *message = &chat->messages[chat->num_messages++];
    *message = (Message){.role = role};
    text_add_bytes(&message->content, content, size);
}

static size_t num_system(const Chat *chat) { return chat->job->options->system != NULL; }

static void remove_messages(Chat *chat, size_t from, size_t count) {
    for (size_t i = from; i < from + count; i++) text_free(&chat->messages[i].content);
    chat->num_messages -= count;
    memmove(chat->messages + from, chat->messages + from + count,
            (chat->num_messages - from) * sizeof *chat->messages);
}

// Encodes the conversation without its oldest questions and their answers.
static Status encode_without(Chat *chat, size_t questions) {
    Text list = {0};
    Json *messages;
    for (size_t i = 0; i < chat->num_messages; i++) {
        const Text *content = &chat->messages[i].content;
        if (i >= num_system(chat) && i < num_system(chat) + 2 * questions) continue;
        text_add(&list, "%s{\"role\": \"%s\", \"content\": ", list.size ? ", " : "[", chat->messages[i].role);
        json_add_string(&list, text_string(content), content->size);
        text_add(&list, "}");
    }
    text_add(&list, "]");
    Status status = json_parse(&messages, list.data, list.size, "the conversation");
    text_free(&list);
    TRY(status);
    chat->prompt.count = 0;
    status = chat_prompt(&chat->worker, messages, &chat->prompt);
    json_free(messages);
    return status;
}

static bool fits(const Chat *chat) { return chat->prompt.count < (size_t)chat->capacity; }

// Leaves out a message of standard input that the model cannot see as a whole, with its system message. Fails where
// there is no other message, or none would fit.
static Status leave_out_last(Chat *chat) {
    size_t tokens = chat->prompt.count, questions = (chat->num_messages - num_system(chat)) / 2;
    if (chat->job->options->prompt)
        return fail(ERR_CONFIG,
                    "the message has %zu tokens with its template, but the model sees %d: shorten it", tokens,
                    chat->capacity);
    text_free(&chat->messages[chat->num_messages - 1].content);
    TRY(encode_without(chat, questions));
    if (!fits(chat))
        return fail(ERR_CONFIG,
                    "the system message alone has %zu tokens with its template, but the model sees %d: "
                    "shorten it",
                    chat->prompt.count, chat->capacity);
    remove_messages(chat, chat->num_messages - 1, 1);
    fprintf(stderr,
            "note: the message has %zu tokens with its template, but the model sees %d: it is left out\n",
            tokens, chat->capacity);
    return OK;
}

// What does not fit into the window loses its beginning, and a quarter of the window stays for the answer. *left_out:
// the last message alone does not fit, and the conversation is what it was before.
static Status make_prompt(Chat *chat, bool *left_out) {
    size_t forgotten = 0, usual = (size_t)(chat->capacity - chat->capacity / 4);
    TRY(encode_without(chat, 0));
    while (chat->prompt.count > usual && chat->num_messages > num_system(chat) + 2 * (forgotten + 1))
        TRY(encode_without(chat, ++forgotten));
    *left_out = !fits(chat);
    if (*left_out) return leave_out_last(chat);
    if (forgotten)
        fprintf(stderr, "the conversation is longer than %d tokens: its oldest %zu questions are forgotten\n",
                chat->capacity, forgotten);
    remove_messages(chat, num_system(chat), 2 * forgotten);
    return OK;
}

// ---- input --------------------------------------------------------------------------------------

static Status fill_input(Chat *chat) {
    struct pollfd from = {.fd = STDIN_FILENO, .events = POLLIN};
    char block[4096];
    if (poll(&from, 1, LOOK_MS) <= 0) return OK;
    ssize_t got = read(STDIN_FILENO, block, sizeof block);
    if (got < 0 && errno != EINTR && errno != EAGAIN)
        return fail(ERR_IO, "standard input: a read failed: %s", strerror(errno));
    chat->input_over = got == 0;
    if (got > 0) text_add_bytes(&chat->input, block, (size_t)got);
    return chat->input.size <= MAX_MESSAGE_BYTES
               ? OK
               : fail(ERR_DATA, "standard input: a line of more than %d bytes", MAX_MESSAGE_BYTES);
}

// Takes the next line that is not empty. *more is false at the end of the input.
static Status read_line(Chat *chat, bool *more) {
    const atomic_int *stopped = chat->job->stopped;
    for (;;) {
        const char *start = text_string(&chat->input);
        const char *end = memchr(start, '\n', chat->input.size);
        size_t size = end ? (size_t)(end - start) : chat->input.size, used = size + (end != NULL);
        *more = end || size || !chat->input_over;
        if (!*more) return OK;
        if (end || chat->input_over) {
            while (size && start[size - 1] == '\r') size--;
            if (size) add_message(chat, "user", start, size);
            if (used) memmove(chat->input.data, chat->input.data + used, chat->input.size - used);
            chat->input.size -= used;
            if (size) return OK;
            continue;
        }
        if (stopped && atomic_load(stopped)) return fail(INTERRUPTED, "stopped by a signal");
        TRY(fill_input(chat));
    }
}

// Takes the next message of the user: --prompt, which is the only one, or a line of standard input.
static Status take_message(Chat *chat, bool *more) {
    const char *prompt = chat->job->options->prompt;
    if (!prompt) {
        if (isatty(STDIN_FILENO)) fputs("> ", stderr);
        return read_line(chat, more);
    }
    *more = !chat->num_answers;
    if (*more) add_message(chat, "user", prompt, strlen(prompt));
    return OK;
}

// Gives every rank the tokens of the conversation with the next message.
static Status next_prompt(Chat *chat, bool *more) {
    Status status = OK;
    int64_t count = -1;
    bool left_out = is_first(chat);
    while (status == OK && left_out) {
        status = take_message(chat, more);
        left_out = false;
        if (status == OK && *more) status = make_prompt(chat, &left_out);
        if (status == OK && *more && !left_out) count = (int64_t)chat->prompt.count;
    }
    TRY(comm_agree(chat->world, status));
    comm_broadcast_host(chat->world, &count, sizeof count, 0);
    *more = count >= 0;
    if (!*more) return OK;
    array_grow(&chat->prompt.ids, sizeof *chat->prompt.ids, (size_t)count, &chat->prompt.capacity);
    chat->prompt.count = (size_t)count;
    comm_broadcast_host(chat->world, chat->prompt.ids, (size_t)count * sizeof *chat->prompt.ids, 0);
    return OK;
}

// ---- an answer ----------------------------------------------------------------------------------

static void give(void *self, int sample, const char *text, size_t size) {
    Chat *chat = self;
    (void)sample;
    text_add_bytes(&chat->messages[chat->num_messages - 1].content, text, size);
    fwrite(text, 1, size, stdout);
    fflush(stdout);
}

// The tokens of the prompt that the model has seen; the last one is always given to it.
static int count_known(const Chat *chat) {
    size_t known = 0, most = chat->prompt.count - 1;
    while (known < most && known < chat->seen.count && chat->seen.ids[known] == chat->prompt.ids[known])
        known++;
    return (int)known;
}

static Status answer(Chat *chat) {
    const Options *o = chat->job->options;
    bool is_limited = options_origin(o, "max_new_tokens") != FROM_DEFAULT;
    int known = count_known(chat);
    infer_rewind(chat->infer, known);
    chat->seen.count = (size_t)known;
    JobModel model = {.job = chat->job,
                      .world = chat->world,
                      .infer = chat->infer,
                      .batch = 1,
                      .capacity = chat->capacity,
                      .longest = chat->longest,
                      .seen = &chat->seen};
    SampleSpec sample = job_sample(chat->job, &chat->prompt, is_limited ? o->max_new_tokens : chat->capacity);
    GenerateSpec spec = job_generate_spec(chat->job, &sample);
    spec.ends = chat->ends.ids, spec.num_ends = chat->ends.count, spec.known_tokens = known;
    spec.give = is_first(chat) ? give : NULL, spec.self = chat;
    GenerateReport report;
    if (is_first(chat)) add_message(chat, "assistant", "", 0);
    TRY(job_generate(&model, &spec, &report));
    chat->num_answers++;
    chat->new_tokens += report.new_tokens;
    chat->new_s += report.new_s;
    if (is_first(chat)) putchar('\n');
    if (is_first(chat)) fflush(stdout);
    if (is_first(chat) && report.num_endings[END_CAPACITY])
        fprintf(stderr, "note: the answer is cut: the window of %d tokens is full\n", chat->capacity);
    return report.num_endings[END_SIGNAL] ? fail(INTERRUPTED, "stopped by a signal") : OK;
}

// ---- the run ------------------------------------------------------------------------------------

static Status open_format(Chat *chat, int32_t *end) {
    const Options *o = chat->job->options;
    const char *where = o->tokenizer_model ? o->tokenizer_model : chat->job->files;
    TRY(chat_format_open(&chat->format, chat->job->tokenizer, where, o->chat_template));
    TRY(chat_worker_open(&chat->worker, &chat->format));
    if (o->system) add_message(chat, "system", o->system, strlen(o->system));
    return chat_turn_end(&chat->worker, end);
}

// A model may end its turns with another token than its texts, as base models do whose template is that of their chats.
static Status open_chat(Chat *chat) {
    int32_t end = -1;
    TRY(comm_agree(chat->world, is_first(chat) ? open_format(chat, &end) : OK));
    comm_broadcast_host(chat->world, &end, sizeof end, 0);
    token_list_add(&chat->ends, chat->job->ends.ids, chat->job->ends.count);
    if (end >= 0) token_list_add(&chat->ends, &end, 1);
    int trained = model_job_trained_positions(chat->job);
    chat->capacity = trained < MOST_POSITIONS ? trained : MOST_POSITIONS;
    bool cached = chat->job->options->kv_cache;
    chat->longest = cached && chat->capacity > PROMPT_PIECE ? PROMPT_PIECE : chat->capacity;
    comm_set_timeout(chat->world, PATIENCE_S, "--chat waits for what the user writes");
    InferSpec spec = {.batch = 1, .capacity = chat->capacity, .longest = chat->longest, .cache = cached};
    return model_job_infer(chat->job, chat->world, spec, &chat->infer);
}

static Status talk(Chat *chat) {
    for (bool more = true;;) {
        TRY(next_prompt(chat, &more));
        if (!more) break;
        TRY(answer(chat));
    }
    if (is_first(chat))
        fprintf(stderr, "%" PRId64 " answers, %" PRId64 " tokens, %.1f tokens/s\n", chat->num_answers,
                chat->new_tokens, (double)chat->new_tokens / (chat->new_s + 1e-9));
    return OK;
}

Status chat_run(Comm *world, void *arg) {
    Chat chat = {.job = arg, .world = world};
    Status status = open_chat(&chat);
    if (status == OK) status = talk(&chat);
    infer_close(chat.infer);
    if (is_first(&chat)) {
        chat_worker_close(&chat.worker);
        chat_format_close(&chat.format);
    }
    for (size_t i = 0; i < chat.num_messages; i++) text_free(&chat.messages[i].content);
    free(chat.messages);
    text_free(&chat.input);
    token_list_free(&chat.ends);
    token_list_free(&chat.prompt);
    token_list_free(&chat.seen);
    return status;
}
