// Reads the command line, and the file that it names.
#include "config/table.h"
#include <stdlib.h>
#include <string.h>

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Returns whether the word is "--name", "--name=value", "-n", or the mistake "-name". A lone "-", a negative number and
// a path are values.
static bool is_option(const char *word) { return word[0] == '-' && (word[1] == '-' || is_letter(word[1])); }

static Status one_dash_missing(Verb verb, const char *key, Source source) {
    Meaning meaning = meaning_of(verb, key);
    if (!meaning.option && !meaning.answer) return name_unknown(verb, key, source);
    return fail(ERR_USAGE, "unknown option %s; did you mean -%s?", source.name, source.name);
}

typedef struct {
    int argc, next;
    char **argv;
} Arguments;

static int count_values(const Arguments *arguments, Arity arity) {
    int most = arity == MANY ? arguments->argc : arity == ONE ? 1 : 0, count = 0;
    while (count < most && arguments->next + count < arguments->argc &&
           !is_option(arguments->argv[arguments->next + count]))
        count++;
    return count;
}

static Status apply_argument(Options *options, Arguments *arguments) {
    const char *argument = arguments->argv[arguments->next++];
    size_t length = strcspn(argument, "=");
    char name[80];
    if (length >= sizeof name) return fail(ERR_USAGE, "unknown option %.60s...", argument);
    snprintf(name, sizeof name, "%.*s", (int)length, argument);
    const char *key = name + strspn(name, "-");
    Source source = {FROM_COMMAND_LINE, "", name, 0};
    if (name[1] != '-' && name[2]) return one_dash_missing(options->store->verb, key, source);
    if (argument[length] == '=')
        return name_apply(options, key, (const char *[]){argument + length + 1}, 1, source);
    Arity arity = meaning_arity(meaning_of(options->store->verb, key));
    const char *const *words = (const char *const *)(arguments->argv + arguments->next);
    int num_words = count_values(arguments, arity);
    arguments->next += num_words;
    return name_apply(options, key, words, num_words, source);
}

int option_words(Verb verb, char **words, int count, const char **field) {
    char name[80];
    size_t length = strcspn(words[0], "=");
    *field = NULL;
    if (!is_option(words[0]) || length >= sizeof name) return 1;
    snprintf(name, sizeof name, "%.*s", (int)length, words[0]);
    Meaning meaning = meaning_of(verb, name + strspn(name, "-"));
    if (meaning.option) *field = meaning.option->field;
    bool joined = words[0][length] == '=';
    return joined ? 1 : 1 + count_values(&(Arguments){count, 1, words}, meaning_arity(meaning));
}

static void options_create(Options *options, Verb verb) {
    *options = (Options){.store = calloc(1, sizeof *options->store)};
    CHECK(options->store, "no memory for options");
    options->store->verb = verb;
    for (int i = 0; i < NUM_OPTIONS; i++) value_set_default(options, &option_table[i]);
}

static Status parse_all(Options *options, Arguments arguments) {
    const char **items = options_block(options, (size_t)arguments.argc * sizeof *items);
    options->positional = (StringList){items, 0};
    while (arguments.next < arguments.argc) {
        char *word = arguments.argv[arguments.next];
        if (options->store->verb == FOR_SUPERVISE && !strcmp(word, "--")) {
            // The rest is the command that is supervised.
            while (++arguments.next < arguments.argc)
                items[options->positional.count++] = options_string(options, arguments.argv[arguments.next]);
        } else if (is_option(word)) {
            TRY(apply_argument(options, &arguments));
        } else {
            items[options->positional.count++] = options_string(options, word);
            arguments.next++;
        }
    }
    if (options->config) TRY(yaml_read(options, options->config));
    OptionsStore *store = options->store;
    if (!store->refused.size) return OK;
    const char *also = text_string(&store->also_refused);
    return fail(ERR_CONFIG, "%s%s%s", text_string(&store->refused), *also ? "; likewise not supported: " : "",
                also);
}

Status options_parse(Options *options, Verb verb, int argc, char **argv) {
    options_create(options, verb);
    options->store->argc = argc, options->store->argv = argv;
    Status status = parse_all(options, (Arguments){argc, 0, argv});
    if (status != OK) options_destroy(options);
    return status;
}

Status options_again(Options *options, const Options *from, int count, char **more) {
    const OptionsStore *store = from->store;
    char **argv = calloc((size_t)(store->argc + count) + 1, sizeof *argv);
    CHECK(argv, "no memory for options");
    for (int i = 0; i < store->argc + count; i++)
        argv[i] = i < store->argc ? store->argv[i] : more[i - store->argc];
    Status status = options_parse(options, store->verb, store->argc + count, argv);
    if (status == OK) options->store->argc = 0, options->store->argv = NULL;
    free(argv);
    return status;
}
