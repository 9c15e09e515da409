// Tests conversations: their shapes, the tokens that are trained, packing, and what is refused with file and line.
#include "base/rng.h"
#include "chat_fixture.h"
#include "corpus/chat_format.h"
#include "corpus/chat_pack.h"
#include <inttypes.h>

static void expect_marked(const char *template, const char *lines, bool last_only, const char *expected) {
    Small small;
    make_folder(template);
    small_job(&small, lines);
    small.job.last_answer_only = last_only;
    expect_shown(&small, lines, expected);
}

#define TWO_TURNS                                                                                                 \
    "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\na b<|im_end|>\n<|im_start|>assistant\n[abc<|im_end|>]\n" \
    "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[\xc3\xa9<|im_end|>]\n\n"

static void shapes_are_one(void) {
    static const char *const LINES[] = {
        "{\"messages\": [{\"role\": \"system\", \"content\": \"be\"}, {\"role\": \"user\", \"content\": \"a b\"}, {\"role\": "
        "\"assistant\", \"content\": \"abc\"}, {\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", "
        "\"content\": \"\\u00e9\"}], \"id\": 7}\n",
        "{\"conversations\": [{\"from\": \"system\", \"value\": \"be\"}, {\"from\": \"human\", \"value\": \"a b\"}, "
        "{\"from\": \"gpt\", \"value\": \"abc\"}, {\"from\": \"user\", \"value\": \"c\"}, {\"from\": \"assistant\", "
        "\"value\": \"\\u00e9\"}]}\n",
        "{\"system\": \"be\", \"conversations\": [{\"from\": \"human\", \"value\": \"a b\"}, {\"from\": \"gpt\", \"value\": "
        "\"abc\"}, {\"from\": \"human\", \"value\": \"c\"}, {\"from\": \"gpt\", \"value\": \"\xc3\xa9\"}]}\n",
        "{\"conversations\": [{\"role\": \"system\", \"content\": \"be\"}, {\"role\": \"user\", \"content\": \"a b\"}, "
        "{\"role\": \"assistant\", \"content\": \"abc\"}, {\"role\": \"user\", \"content\": \"c\"}, {\"role\": "
        "\"assistant\", \"content\": \"\\u00e9\"}]}\n",
        "{\"system\": \"be\", \"instruction\": \"c\", \"input\": \"\", \"output\": \"\\u00e9\", \"history\": [[\"a b\", "
        "\"abc\"]]}\n",
        // A system message beside messages, and once more within them.
        "{\"system\": \"be\", \"messages\": [{\"role\": \"user\", \"content\": \"a b\"}, {\"role\": \"assistant\", "
        "\"content\": \"abc\"}, {\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": "
        "\"\\u00e9\"}]}\n",
        "{\"system\": \"be\", \"messages\": [{\"role\": \"system\", \"content\": \"be\"}, {\"role\": \"user\", "
        "\"content\": \"a b\"}, {\"role\": \"assistant\", \"content\": \"abc\"}, {\"role\": \"user\", \"content\": "
        "\"c\"}, {\"role\": \"assistant\", \"content\": \"\\u00e9\"}]}\n",
        "{\"system\": \"be\", \"conversations\": [{\"role\": \"user\", \"content\": \"a b\"}, {\"role\": \"assistant\", "
        "\"content\": \"abc\"}, {\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": "
        "\"\\u00e9\"}]}\n",
        "{\"system\": \"be\", \"prompt\": [{\"role\": \"user\", \"content\": \"a b\"}, {\"role\": \"assistant\", "
        "\"content\": \"abc\"}, {\"role\": \"user\", \"content\": \"c\"}], \"completion\": \"\\u00e9\"}\n",
        "{\"prompt\": [{\"role\": \"system\", \"content\": \"be\"}, {\"role\": \"user\", \"content\": \"a b\"}, {\"role\": "
        "\"assistant\", \"content\": \"abc\"}, {\"role\": \"user\", \"content\": \"c\"}], \"completion\": [{\"role\": "
        "\"assistant\", \"content\": \"\\u00e9\"}]}\n",
    };
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++)
        expect_marked(MARKED, LINES[i], false, TWO_TURNS);
    expect_marked(
        MARKED,
        "{\"prompt\": \"a\", \"completion\": \"b\", \"system\": null}\n"
        "{\"instruction\": \"a\", \"input\": \"x\", \"output\": \"b\", \"history\": null, \"system\": \"\"}\n",
        false,
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n\n"
        "<|im_start|>user\na\nx<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n\n");
}

#define TALK                                                                                                        \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b \\n\"}, " \
    "{\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": \"d\"}]}\n"

// Without marks an answer is what a longer conversation has beyond a shorter one, less the line end of the turn.
static void answers_are_found(void) {
    static const char *const ALL = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b \n<|im_end|>]\n"
                                   "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>]\n\n";
    static const char *const LAST = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb \n<|im_end|>\n"
                                    "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>]\n\n";
    expect_marked(MARKED, TALK, false, ALL);
    expect_marked(UNMARKED, TALK, false, ALL);
    expect_marked(MARKED, TALK, true, LAST);
    expect_marked(UNMARKED, TALK, true, LAST);
    // Nothing comes before the first token.
    expect_marked("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
                  "{\"messages\": [{\"role\": \"assistant\", \"content\": \"xyz\"}]}\n", false, "x[yz]\n");
}

// Answers of weight 0 are read, not trained, whether the template marks answers or not, and in turns of ShareGPT.
static void weights_count(void) {
    static const char *const LINES[] = {
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"weight\": 1}, {\"role\": \"assistant\", \"content\": "
        "\"b\", \"weight\": 0}, {\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": \"d\", "
        "\"weight\": 1.0}, {\"role\": \"assistant\", \"content\": \"e\", \"weight\": 0}]}\n",
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"b\", \"weight\": 0}, "
        "{\"from\": \"human\", \"value\": \"c\"}, {\"from\": \"gpt\", \"value\": \"d\", \"weight\": null}, {\"from\": "
        "\"gpt\", \"value\": \"e\", \"weight\": 0}]}\n",
    };
    static const char *const TRAINED =
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
        "<|im_start|>assistant\n[d<|im_end|>]\n<|im_start|>assistant\ne<|im_end|>\n\n";
    for (int i = 0; i < 4; i++) expect_marked(i & 2 ? MARKED : UNMARKED, LINES[i & 1], false, TRAINED);
    // The last answer is the last of those that are trained.
    for (int i = 0; i < 2; i++) expect_marked(i ? MARKED : UNMARKED, LINES[0], true, TRAINED);
}

// A list of parts is the text of its parts where the template has no parts, which would write it as Python prints it.
static void parts_are_text(void) {
    static const char LINE[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}]}, {\"role\": "
        "\"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"y\\n\"}, {\"text\": \"es\", \"type\": "
        "\"text\"}], \"weight\": 1}, {\"role\": \"assistant\", \"weight\": 0, \"content\": []}]}\n";
    static const char TRIMS[] =
        "{% for m in messages %}{{ m.role }} {{ m.content | trim }}<|im_end|>{% endfor %}";
    static const char TRIMS_MARKED[] =
        "{% for m in messages %}{{ m.role }} {% if m.role == 'assistant' %}{% generation %}{{ m.content | trim }}"
        "<|im_end|>{% endgeneration %}{% else %}{{ m.content | trim }}<|im_end|>{% endif %}{% endfor %}";
    static const char READS[] =
        "{% for m in messages %}{{ m.role }} {% generation %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endgeneration %}<|im_end|>{% endfor %}";
    expect_marked(TRIMS_MARKED, LINE, false,
                  "user a<|im_end|>assistant [y\nes<|im_end|>]assistant <|im_end|>\n");
    expect_marked(TRIMS, LINE, false, "user a<|im_end|>[assistant y\nes<|im_end|>]assistant <|im_end|>\n");
    expect_marked(READS, LINE, false,
                  "user [<a>]<|im_end|>assistant [<y\n><es>]<|im_end|>assistant <|im_end|>\n");
    // An answer that calls a tool may have no text.
    expect_marked(
        "{% for m in messages %}{% generation %}{{ m.role }} {{ m.content if m.content else m.tool_calls[0] "
        "}}{% endgeneration %}{% endfor %}",
        "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [\"f\"]}]}\n", false,
        "a[ssistant f]\n");
    Small small;
    make_folder(TRIMS);
    small_job(
        &small,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
        "null, \"tool_calls\": [{\"type\": \"function\"}]}]}\n");
    remove(harness_path("chats.idx"));
    expect_refused(&small, ERR_DATA,
                   "chats.jsonl:1: message 2: \"content\" is null, which the template writes as");
}

// ---- what is refused ----------------------------------------------------------------------------------------

#define ANSWERED "{\"prompt\": \"a\", \"completion\": \"b\"}\n"

static const struct {
    const char *lines, *words;
} CASES[] = {
    {ANSWERED "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n",
     "chats.jsonl:2: a conversation without an answer: there is nothing to train on; add a turn of the assistant, or "
     "leave the line out; --skip-bad-lines leaves such lines out"},
    {"{\"text\": \"a\"}\n",
     "chats.jsonl:1: no conversation: \"messages\", \"conversations\" (ShareGPT), \"instruction\" "
     "(Alpaca) or \"prompt\" with \"completion\" is expected"},
    {"{\"prompt\": \"a\", \"messages\": []}\n", "\"messages\" and \"prompt\" are both there"},
    {"{\"prompt\": \"a\"}\n", "\"completion\" is missing: it has to be a string or a list of messages"},
    {"{\"instruction\": \"a\", \"output\": 3}\n", "\"output\" is no string"},
    {"{\"messages\": 3}\n", "\"messages\" has to be a list of turns"},
    {"{\"messages\": [3]}\n", "\"messages\", turn 1 is no object"},
    {"{\"messages\": [{\"role\": \"bot\", \"content\": \"a\"}]}\n",
     "message 1: the role is \"bot\"; system, user, "},
    {"{\"conversations\": [{\"from\": \"x\", \"value\": \"a\"}]}\n",
     "conversations, turn 1: \"from\" is \"x\"; human, gpt"},
    {"{\"messages\": [{\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": "
     "\"image_url\"}]}]}\n",
     "chats.jsonl:1: message 1: \"content\" is a list with a part of type \"image_url\", but the template writes text "
     "alone: leave this part out, or the line"},
    {"{\"messages\": [{\"role\": \"assistant\", \"content\": {\"text\": \"a\"}}]}\n",
     "chats.jsonl:1: message 1: \"content\" is no string"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": null}, {\"role\": \"assistant\", \"content\": \"a\"}]}\n",
     "chats.jsonl:1: message 1: \"content\" is null"},
    {"{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": null}]}\n",
     "chats.jsonl:1: message 1: \"content\" is null"},
    // What the data have is shown without control characters.
    {"{\"messages\": [{\"role\": \"b\\u001b[2J\\u009bm\", \"content\": \"a\"}]}\n",
     "message 1: the role is \"b\\u001b[2J\\u009bm\"; system"},
    {"{\"conversations\": [{\"from\": \"x\\n\\u001by\", \"value\": \"a\"}]}\n",
     "\"from\" is \"x\\u000a\\u001by\"; human"},
    {"{\"conversations\": [{\"from\": \"gpt\"}]}\n", "\"value\" is missing"},
    {"{\"system\": 3, \"prompt\": \"a\", \"completion\": \"b\"}\n", "chats.jsonl:1: \"system\" is no string"},
    {"{\"system\": [], \"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n",
     "\"system\" is no string: it has to be one, or to be left out"},
    {"{\"system\": \"x\", \"messages\": [{\"role\": \"system\", \"content\": \"y\"}, {\"role\": \"assistant\", "
     "\"content\": \"a\"}]}\n",
     "\"system\" and the system message 1 differ: keep the one"},
    {"{\"instruction\": \"a\", \"input\": 5, \"output\": \"b\"}\n", "chats.jsonl:1: \"input\" is no string"},
    {"{\"instruction\": \"a\", \"input\": [\"a\"], \"output\": \"b\"}\n", "\"input\" is no string"},
    {"{\"instruction\": \"a\", \"history\": \"x\", \"output\": \"b\"}\n",
     "chats.jsonl:1: \"history\" is no list"},
    {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0.5}]}\n",
     "chats.jsonl:1: message 1: \"weight\" is neither 0 nor 1"},
    {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": \"0\"}]}\n",
     "message 1: \"weight\" is neither 0 nor 1"},
    {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0}]}\n",
     "chats.jsonl:1: every answer has the weight 0"},
    {"[\n" ANSWERED "]\n", "chats.jsonl:1: a list over many lines is no JSON lines: `jq -c '.[]' FILE`"},
    {"[{\"prompt\": \"a\", \"completion\": \"b\"}]\n",
     "chats.jsonl:1: a list on one line is no JSON lines: `jq -c '.[]' FILE` makes them of it"},
    {ANSWERED "{\"prompt\": \"a\n", "chats.jsonl:2: byte "},
    {"{\"prompt\": \"a\", \"completion\": \"b\", \"tools\": [{}]}\n",
     "the conversation has tools, which the template does"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\"}]}\n",
     "chats.jsonl:1: " /* the template */},
};

static void wrong_lines_are_refused(void) {
    Small small;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        make_folder(
            "{% for m in messages %}{{ m.role + '|' }}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
            "{% endfor %}");
        small_job(&small, CASES[i].lines);
        expect_refused(&small, ERR_DATA, CASES[i].words);
        small.job.skip_bad_lines = true;
        ChatSummary summary;
        Status status = chat_prepare(&small.job, &summary);
        EXPECT(status == (strstr(CASES[i].lines, ANSWERED) ? OK : ERR_DATA), "case %zu: %s", i,
               fail_message());
        if (status == OK) EXPECT(summary.bad_lines >= 1 && summary.conversations == 1, "%zu", i);
        if (status == OK) text_free(&summary.left_out);
        Text index = {0};
        text_add(&index, "%s.idx", small.prefix);
        remove(index.data);
        text_free(&index);
    }
}

// Of a folder the JSON lines are read.
static void folders_are_read(void) {
    Small small;
    ChatSummary summary;
    make_folder(MARKED);
    small_job(&small, "");
    EXPECT_OK(folder_make(harness_path("folder")));
    put("folder/README.md", "# Chats\n");
    put("folder/LICENSE", "free\n");
    put("folder/a.json", ANSWERED);
    snprintf(small.input, sizeof small.input, "%s", harness_path("folder"));
    EXPECT_OK(chat_prepare(&small.job, &summary));
    EXPECT(summary.conversations == 1 && summary.other_files == 2, "%" PRId64 " %" PRId64,
           summary.conversations, summary.other_files);
    put("folder/b.jsonl", ANSWERED ANSWERED);
    EXPECT_OK(chat_prepare(&small.job, &summary));
    EXPECT(summary.conversations == 2 && summary.other_files == 2, "%" PRId64 " %" PRId64,
           summary.conversations, summary.other_files);
    remove(harness_path("chats.idx"));
}

static void long_conversations(void) {
    Small small;
    ChatSummary summary;
    make_folder(MARKED);
    small_job(&small, ANSWERED
              "{\"prompt\": \"x\", \"completion\": \"0123456789 0123456789 0123456789 0123456789\"}\n"
              "{\"prompt\": \"0123456789 0123456789 0123456789 0123456789\", \"completion\": \"x\"}\n");
    small.job.seq_length = 47;
    expect_refused(
        &small, ERR_DATA,
        "chats.jsonl:2: a conversation of 65 tokens, but a sample has 48 (--seq-length 47 and the one that "
        "follows): give a larger --seq-length, or --too-long truncate or drop");
    small.job.too_long = CHAT_TRUNCATE;
    EXPECT_OK(chat_prepare(&small.job, &summary));
    EXPECT(summary.conversations == 2 && summary.truncated == 1 && summary.dropped == 1 &&
               summary.longest == 65,
           "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64, summary.conversations, summary.truncated,
           summary.dropped, summary.longest);
    small.job.too_long = CHAT_DROP;
    EXPECT_OK(chat_prepare(&small.job, &summary));
    EXPECT(summary.conversations == 1 && summary.truncated == 0 && summary.dropped == 2, "%" PRId64,
           summary.dropped);
}

static void templates_have_to_suit(void) {
    Small small;
    make_folder(NULL);
    small_job(&small, ANSWERED);
    remove(harness_path("chats.idx"));
    expect_refused(&small, ERR_CONFIG,
                   "model: this tokenizer has no chat template, neither chat_template.jinja nor in ");
    small.job.template = "llama3";
    expect_refused(&small, ERR_CONFIG,
                   "--chat-template llama3: the vocabulary has no token <|start_header_id|>");
    small.job.template = "chatlm";
    expect_refused(&small, ERR_NO_INPUT,
                   "--chat-template chatlm: there is no such file, and no template of this name; built "
                   "in are chatml, qwen3, llama3, mistral, mistral3, gemma, phi3, zephyr, alpaca");
    small.job.template = NULL;
    make_folder("{% for m in messages %}{{ m.name.first }}{% endfor %}");
    expect_refused(&small, ERR_DATA, "chats.jsonl:1: ");
    expect_refused(&small, ERR_DATA,
                   "tokenizer_config.json, chat_template:1: a value of type dict has no 'name'");
    make_folder("{% if %}");
    expect_refused(&small, ERR_DATA,
                   "tokenizer_config.json, chat_template:1: a value is expected, not the end of the tag");
    make_folder("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}");
    expect_refused(&small, ERR_DATA,
                   "chats.jsonl:1: message 2: the template writes the conversation up to this answer in");
    put("model/chat_template.jinja", "{{ messages[0].content }}");
    expect_refused(&small, ERR_DATA,
                   "chats.jsonl:1: the template writes no text for the answers of this conversation");
    remove(harness_path("model/chat_template.jinja"));
    make_folder(MARKED);
    put("model/config.json", "{\"vocab_size\": 263}");
    expect_refused(&small, ERR_DATA,
                   "config.json: the model's vocab_size is 263, but the tokenizer has 264 tokens");
    put("model/config.json", "{\"vocab_size\": 264}");
    ChatSummary summary;
    EXPECT_OK(chat_prepare(&small.job, &summary));
    remove(harness_path("model/config.json"));
}

// Two renderings for each of many answers: their time grows with the square of the number.
static void many_answers_are_refused(void) {
    enum { PAIRS = 2000 };
    Text line = {0};
    Small small;
    atomic_int stopped = 0;
    text_add(&line, "{\"messages\": [");
    for (int i = 0; i < PAIRS; i++)
        text_add(&line,
                 "%s{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}",
                 i ? ", " : "");
    text_add(&line, "]}\n");
    make_folder(UNMARKED);
    small_job(&small, line.data);
    small.job.stopped = &stopped;
    small.job.too_long = CHAT_TRUNCATE;
    remove(harness_path("chats.idx"));
    expect_refused(&small, ERR_DATA,
                   "chats.jsonl:1: a conversation of 4000 messages: to find its answers the template is run "
                   "twice for each");
    make_folder(MARKED);
    ChatSummary summary;
    EXPECT_OK(chat_prepare(&small.job, &summary));
    EXPECT(summary.conversations == 1, "a template that marks its answers is run once");
    remove(harness_path("chats.idx"));
    text_free(&line);
}

// A worker that is told to stop leaves a conversation before its end.
static void answers_are_not_looked_for_when_stopped(void) {
    static const char LINE[] = "{\"prompt\": \"a\", \"completion\": \"b\"}";
    const atomic_int stopped = 1;
    Tokenizer *tokenizer;
    ChatFormat format;
    ChatWorker worker;
    Json *line;
    TokenList tokens = {0}, mask = {0};
    make_folder(UNMARKED);
    EXPECT_OK(tokenizer_open_path(&tokenizer, harness_path("model")));
    EXPECT_OK(chat_format_open(&format, tokenizer, harness_path("model"), NULL));
    EXPECT_OK(chat_worker_open(&worker, &format));
    EXPECT_OK(json_parse(&line, LINE, strlen(LINE), "line"));
    EXPECT_OK(chat_encode(&worker, line, &tokens, &mask));
    format.stopped = &stopped;
    EXPECT(chat_encode(&worker, line, &tokens, &mask) == INTERRUPTED, "%s", fail_message());
    json_free(line);
    token_list_free(&tokens);
    token_list_free(&mask);
    chat_worker_close(&worker);
    chat_format_close(&format);
    tokenizer_close(tokenizer);
}

// ---- packing -------------------------------------------------------------------------------------------------

enum { PACKED = 400, ROOM = 100 };

static size_t length_of(int i) { return 2 + rng_word(rng_key(5, "lengths", 0), 0, (uint64_t)i) % (ROOM - 1); }

// Every conversation is in one sample, whole, with its mask; no sample is larger than the window; few are far from full.
static void packing_keeps_all(void) {
    ChatPacker *packer = calloc(1, sizeof *packer);
    int32_t tokens[ROOM], mask[ROOM];
    bool seen[PACKED] = {false};
    int64_t total = 0;
    EXPECT_OK(chat_packer_open(packer, harness_path("packed"), 1000, ROOM, PACK));
    for (int i = 0; i < PACKED; i++) {
        size_t length = length_of(i);
        for (size_t k = 0; k < length; k++) {
            tokens[k] = i;
            mask[k] = (int32_t)((k + (size_t)i) % 2);
        }
        EXPECT_OK(chat_packer_add(packer, tokens, mask, length));
        total += (int64_t)length;
    }
    EXPECT_OK(chat_packer_flush(packer));
    int64_t samples = packer->samples;
    EXPECT_OK(indexed_writer_finish(packer->mask));
    EXPECT_OK(indexed_writer_finish(packer->tokens));
    chat_packer_close(packer);
    free(packer);
    IndexedDataset *set, *masks;
    EXPECT_OK(indexed_dataset_open(&set, harness_path("packed"), 1000));
    EXPECT_OK(indexed_dataset_open(&masks, harness_path("packed_loss_mask"), 2));
    EXPECT(indexed_dataset_num_sequences(set) == PACKED && indexed_dataset_num_sequences(masks) == PACKED,
           "sequences");
    EXPECT(indexed_dataset_num_documents(set) == samples && indexed_dataset_num_documents(masks) == samples,
           "samples");
    EXPECT(samples * ROOM * 90 < total * 100, "%d tokens of %d samples", (int)total, (int)samples);
    for (int64_t s = 0; s < PACKED; s++) {
        int32_t length = indexed_dataset_length(set, s);
        EXPECT_OK(indexed_dataset_read(set, s, 0, length, tokens, 1));
        EXPECT_OK(indexed_dataset_read(masks, s, 0, length, mask, 1));
        int i = tokens[0];
        EXPECT(i >= 0 && i < PACKED && !seen[i] && (size_t)length == length_of(i), "sequence %d is %d",
               (int)s, i);
        seen[i] = true;
        for (int32_t k = 0; k < length; k++)
            EXPECT(tokens[k] == i && mask[k] == (k + i) % 2, "token %d of %d", k, i);
    }
    indexed_dataset_close(set);
    indexed_dataset_close(masks);
}

// A conversation goes where it leaves the least room, not to the first sample that has room.
static void the_fullest_is_taken(void) {
    static const size_t LENGTHS[] = {50, 70, 30, 48};
    ChatPacker *packer = calloc(1, sizeof *packer);
    int32_t zeros[ROOM] = {0};
    IndexedDataset *set;
    EXPECT_OK(chat_packer_open(packer, harness_path("fullest"), 1000, ROOM, PACK));
    for (int i = 0; i < 4; i++) EXPECT_OK(chat_packer_add(packer, zeros, zeros, LENGTHS[i]));
    EXPECT_OK(chat_packer_flush(packer));
    EXPECT_OK(indexed_writer_finish(packer->mask));
    EXPECT_OK(indexed_writer_finish(packer->tokens));
    chat_packer_close(packer);
    free(packer);
    EXPECT_OK(indexed_dataset_open(&set, harness_path("fullest"), 1000));
    EXPECT(indexed_dataset_num_documents(set) == 2 && indexed_dataset_length(set, 0) == 70 &&
               indexed_dataset_length(set, 1) == 30,
           "70 and 30 are full together");
    indexed_dataset_close(set);
}

static void workers_change_nothing(void) {
    Text lines = {0};
    Small small;
    ChatSummary one, three;
    make_folder(UNMARKED);
    for (int i = 0; i < 3000; i++)
        text_add(&lines, "{\"prompt\": \"question %d\", \"completion\": \"%0*d\"}\n", i, 1 + i * 7 % 60, i);
    small_job(&small, lines.data);
    EXPECT_OK(chat_prepare(&small.job, &one));
    small.job.workers = 3;
    snprintf(small.prefix, sizeof small.prefix, "%s", harness_path("again"));
    EXPECT_OK(chat_prepare(&small.job, &three));
    EXPECT(one.tokens == three.tokens && one.samples == three.samples && one.trained == three.trained,
           "sums");
    expect_same_file(harness_path("chats.bin"), harness_path("again.bin"));
    expect_same_file(harness_path("chats.idx"), harness_path("again.idx"));
    expect_same_file(harness_path("chats_loss_mask.bin"), harness_path("again_loss_mask.bin"));
    expect_same_file(harness_path("chats_loss_mask.idx"), harness_path("again_loss_mask.idx"));
    text_free(&lines);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"shapes_are_one", shapes_are_one},
                       {"answers_are_found", answers_are_found},
                       {"weights_count", weights_count},
                       {"parts_are_text", parts_are_text},
                       {"many_answers_are_refused", many_answers_are_refused},
                       {"answers_are_not_looked_for_when_stopped", answers_are_not_looked_for_when_stopped},
                       {"wrong_lines_are_refused", wrong_lines_are_refused},
                       {"folders_are_read", folders_are_read},
                       {"long_conversations", long_conversations},
                       {"templates_have_to_suit", templates_have_to_suit},
                       {"packing_keeps_all", packing_keeps_all},
                       {"the_fullest_is_taken", the_fullest_is_taken},
                       {"workers_change_nothing", workers_change_nothing},
                       {0}},
        argc, argv);
}
