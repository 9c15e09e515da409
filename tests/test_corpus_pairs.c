// Tests pairs of preferences: their shapes, the tokens that are trained, the samples, and what is refused with file and line.
#include "chat_fixture.h"
#include "dataset/dataset.h"

#define USER(text)      "{\"role\": \"user\", \"content\": \"" text "\"}"
#define ASSISTANT(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"
#define SYSTEM(text)    "{\"role\": \"system\", \"content\": \"" text "\"}"

static void expect_pairs(const char *template, const char *lines, const char *expected) {
    Small small;
    make_folder(template);
    small_job(&small, lines);
    small.job.preferences = true;
    expect_shown(&small, lines, expected);
}

#define ASKED "<|im_start|>user\na b<|im_end|>\n<|im_start|>assistant\n"
#define BOTH  ASKED "[abc<|im_end|>]\n\n" ASKED "[c<|im_end|>]\n\n"

static void shapes_are_one(void) {
    static const char *const LINES[] = {
        "{\"prompt\": \"a b\", \"chosen\": \"abc\", \"rejected\": \"c\"}\n",
        "{\"prompt\": [" USER("a b") "], \"chosen\": [" ASSISTANT("abc") "], \"rejected\": [" ASSISTANT(
            "c") "]}\n",
        "{\"chosen\": [" USER("a b") ", " ASSISTANT("abc") "], \"rejected\": [" USER("a b") ", " ASSISTANT(
            "c") "], \"score\": 3}\n",
        // As in UltraFeedback: the prompt is there a third time.
        "{\"prompt\": \"a b\", \"chosen\": [{\"content\": \"a b\", \"role\": \"user\"}, " ASSISTANT(
            "abc") "], \"rejected\": [" USER("a b") ", " ASSISTANT("c") "]}\n",
        "{\"prompt\": [" USER("a b") "], \"chosen\": " ASSISTANT("abc") ", \"rejected\": \"c\"}\n",
        "{\"instruction\": \"a b\", \"input\": \"\", \"chosen\": \"abc\", \"rejected\": \"c\"}\n",
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"a b\"}], \"chosen\": {\"from\": \"gpt\", \"value\": \"abc\"}, "
        "\"rejected\": {\"from\": \"gpt\", \"value\": \"c\"}}\n",
        "{\"messages\": [" USER("a b") "], \"chosen\": \"abc\", \"rejected\": \"c\"}\n",
    };
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++) {
        expect_pairs(MARKED, LINES[i], BOTH);
        expect_pairs(UNMARKED, LINES[i], BOTH);
    }
}

// An answer in the prompt, a system message, and answers of several turns.
static void prompts_are_not_trained(void) {
    static const char *const LINES[] = {
        "{\"chosen\": [" SYSTEM("be") ", " USER("a") ", " ASSISTANT("b") ", " USER("c") ", " ASSISTANT("abc") "], \"rejected\": [" SYSTEM(
            "be") ", " USER("a") ", " ASSISTANT("b") ", " USER("c") ", " ASSISTANT("d") ", " USER("e") ", " ASSISTANT("f") "]}\n",
        "{\"system\": \"be\", \"prompt\": [" USER("a") ", " ASSISTANT("b") ", " USER(
            "c") "], \"chosen\": \"abc\", \"rejected\": [" ASSISTANT("d") ", " USER("e") ", " ASSISTANT("f") "]}\n",
    };
#define TALK                                                                                                            \
    "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>" \
    "user\nc<|im_end|>\n<|im_start|>assistant\n"
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++) {
        const char *expected =
            TALK "[abc<|im_end|>]\n\n" TALK
                 "[d<|im_end|>]\n<|im_start|>user\ne<|im_end|>\n<|im_start|>assistant\n[f<|im_end|>]\n\n";
        expect_pairs(MARKED, LINES[i], expected);
        expect_pairs(UNMARKED, LINES[i], expected);
    }
}

// A sample is a pair: two sequences, the chosen answer's first, in the order of the lines.
static void samples_are_pairs(void) {
    Small small;
    ChatSummary summary;
    make_folder(MARKED);
    small_job(&small, "{\"prompt\": \"a b\", \"chosen\": \"abcabc\", \"rejected\": \"c\"}\n"
                      "{\"prompt\": \"b\", \"chosen\": \"c\", \"rejected\": \"abcabc\"}\n");
    small.job.preferences = true;
    EXPECT_OK(chat_prepare(&small.job, &summary));
    EXPECT(summary.conversations == 2 && summary.samples == 2, "%d pairs, %d samples",
           (int)summary.conversations, (int)summary.samples);
    IndexedDataset *set, *masks;
    EXPECT_OK(indexed_dataset_open(&set, small.prefix, 1000));
    EXPECT_OK(indexed_dataset_open(&masks, harness_path("chats" PREFERENCE_MASK), 2));
    EXPECT(indexed_dataset_num_documents(set) == 2 && indexed_dataset_num_sequences(set) == 4, "sizes");
    int64_t tokens = 0, trained = 0;
    for (int64_t s = 0; s < 4; s++) {
        int32_t mask[256], length = indexed_dataset_length(masks, s);
        EXPECT(length == indexed_dataset_length(set, s) && length <= 256, "sequence %d", (int)s);
        EXPECT_OK(indexed_dataset_read(masks, s, 0, length, mask, 1));
        EXPECT(mask[0] == 0 && indexed_dataset_document(set, s / 2) == s / 2 * 2, "sequence %d", (int)s);
        for (int32_t i = 0; i < length; i++) trained += mask[i];
        tokens += length;
    }
    EXPECT(tokens == summary.tokens && trained == summary.trained && trained > 0, "%d tokens, %d trained",
           (int)tokens, (int)trained);
    bool longer = indexed_dataset_length(set, 0) > indexed_dataset_length(set, 1);
    EXPECT(longer && indexed_dataset_length(set, 2) < indexed_dataset_length(set, 3), "the order of answers");
    indexed_dataset_close(set);
    indexed_dataset_close(masks);
}

static const struct {
    const char *line, *words;
} CASES[] = {
    {"{\"prompt\": \"a\", \"chosen\": \"b\"}\n",
     "chats.jsonl:1: \"rejected\" is missing: a pair has a \"chosen\" and a \"rejected\" answer; add it, or leave the line out; "
     "--skip-bad-lines leaves such lines out"},
    {"{\"prompt\": \"a\", \"completion\": \"b\"}\n", "chats.jsonl:1: \"chosen\" is missing"},
    {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"\"}\n", "\"rejected\" is empty"},
    {"{\"prompt\": \"a\", \"chosen\": [], \"rejected\": \"b\"}\n", "\"chosen\" is empty"},
    {"{\"prompt\": \"a\", \"chosen\": 3, \"rejected\": \"b\"}\n",
     "\"chosen\" is none of these: it has to be a text, a message or a list of messages"},
    {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}\n",
     "chats.jsonl:1: \"chosen\" and \"rejected\" are the same: there is nothing to prefer; leave the line out"},
    {"{\"chosen\": [" USER("a") ", " ASSISTANT("b") "], \"rejected\": [" USER("a") ", " ASSISTANT("b") "]}\n",
     "\"chosen\" and \"rejected\" are the same"},
    {"{\"prompt\": \"a\", \"chosen\": {\"role\": \"assistant\", \"content\": \"b\", \"id\": 1}, \"rejected\": \"b\"}\n",
     "\"rejected\" have the same tokens"},
    {"{\"chosen\": [" USER("a") ", " ASSISTANT("b") "], \"rejected\": [" USER("c") ", " ASSISTANT("d") "]}\n",
     "chats.jsonl:1: the prompts differ: message 1 of \"chosen\" is no answer, and \"rejected\" does not have it: both need the "
     "same messages before their answers"},
    {"{\"chosen\": [" USER("a") ", " ASSISTANT("b") "], \"rejected\": [" USER("a") "]}\n",
     "\"rejected\": a conversation without an answer"},
    {"{\"chosen\": [" USER("a") ", " ASSISTANT("b") ", " USER("c") ", " ASSISTANT(
         "d") "], \"rejected\": [" USER("a") ", " ASSISTANT("b") "]}\n",
     "the prompts differ: message 3 of \"chosen\" is no answer"},
    {"{\"prompt\": \"x\", \"chosen\": [" USER("a") ", " ASSISTANT("b") "], \"rejected\": [" USER(
         "a") ", " ASSISTANT("d") "]}\n",
     "chats.jsonl:1: the prompts differ: the line's own is not the one with which"},
    {"{\"chosen\": \"b\", \"rejected\": \"c\"}\n", "chats.jsonl:1: there is no prompt: add \"prompt\""},
    {"{\"prompt\": \"a\", \"chosen\": [" USER("a") ", " ASSISTANT("b") "], \"rejected\": \"c\"}\n",
     "\"chosen\" begins with the prompt and \"rejected\" does not"},
    {"{\"prompt\": \"a\", \"messages\": [], \"chosen\": \"b\", \"rejected\": \"c\"}\n",
     "\"chosen\": \"messages\" and \"prompt\" are both there"},
    {"{\"prompt\": \"a\", \"chosen\": [3], \"rejected\": \"c\"}\n", "\"chosen\", turn 1 is no object"},
    {"{\"prompt\": \"a\", \"chosen\": {\"role\": \"bot\", \"content\": \"x\"}, \"rejected\": \"c\"}\n",
     "\"chosen\": message 2: the role is \"bot\""},
    {"[1]\n", "a list on one line is no JSON lines: "},
    {"3\n", "a line has to be an object: {\"prompt\""},
};

static void wrong_lines_are_refused(void) {
    Small small;
    make_folder(MARKED);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        small_job(&small, CASES[i].line);
        small.job.preferences = true;
        expect_refused(&small, ERR_DATA, CASES[i].words);
    }
    small_job(&small, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n");
    expect_refused(&small, ERR_DATA, "a pair of answers: add --preferences");
    small.job.preferences = true;
    small.job.seq_length = 20;
    expect_refused(&small, ERR_DATA, "chosen answer");
    small.job.too_long = CHAT_DROP;
    expect_refused(&small, ERR_DATA, "no pair is left: 1 are too long");
}

static void bad_lines_leave_nothing(void) {
    Small small;
    ChatSummary summary;
    make_folder(MARKED);
    small_job(&small, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}\n"
                      "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n");
    small.job.preferences = small.job.skip_bad_lines = true;
    EXPECT_OK(chat_prepare(&small.job, &summary));
    EXPECT(summary.conversations == 1 && summary.bad_lines == 1, "%d pairs", (int)summary.conversations);
    EXPECT(strstr(text_string(&summary.left_out), "chats.jsonl:1: "), "%s", text_string(&summary.left_out));
    text_free(&summary.left_out);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"shapes are one", shapes_are_one},
                                      {"prompts are not trained", prompts_are_not_trained},
                                      {"wrong lines are refused", wrong_lines_are_refused},
                                      {"samples are pairs", samples_are_pairs},
                                      {"bad lines leave nothing", bad_lines_leave_nothing},
                                      {0}},
                       argc, argv);
}
