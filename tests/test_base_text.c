// Tests the parsers of numbers, the distance of words, growing text, and whole files.
#include "base/file.h"
#include "base/text.h"
#include "harness.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void integers_parse_whole_or_not(void) {
    static const struct {
        const char *string;
        int64_t value;
    } GOOD[] = {{"0", 0},
                {"-17", -17},
                {"+5", 5},
                {"3K", 3000},
                {"2M", 2000000},
                {"1G", 1000000000},
                {"-4B", -4000000000},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775808", INT64_MIN},
                {"9223372036854775K", 9223372036854775000}};
    static const char *const BAD[] = {"",
                                      " 1",
                                      "1 ",
                                      "\t1",
                                      "1.5",
                                      "1e3",
                                      "x",
                                      "K",
                                      "1KK",
                                      "0x10",
                                      "1k",
                                      "--1",
                                      "9223372036854775808",
                                      "9223372036854776K",
                                      "10000000000B"};
    int64_t value = 0;
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++)
        EXPECT(parse_int(GOOD[i].string, &value) && value == GOOD[i].value, "%s gives %lld", GOOD[i].string,
               (long long)value);
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        EXPECT(!parse_int(BAD[i], &value), "\"%s\"", BAD[i]);
}

static void reals_parse_whole_or_not(void) {
    static const struct {
        const char *string;
        double value;
    } GOOD[] = {{"0", 0}, {"-1.5e-4", -1.5e-4}, {".25", 0.25}, {"6e-5", 6e-5}, {"1e-3", 1e-3}};
    static const char *const BAD[] = {"",     " 1",    "1 ",   "\n1", "nan", "inf",
                                      "-inf", "1e999", "1.5x", "e5",  "1,5"};
    double value = 0;
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++)
        EXPECT(parse_double(GOOD[i].string, &value) && value == GOOD[i].value, "%s gives %g", GOOD[i].string,
               value);
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        EXPECT(!parse_double(BAD[i], &value), "\"%s\"", BAD[i]);
}

static void distance_is_a_metric(void) {
    static const char *const WORDS[] = {"", "a", "kitten", "sitting", "sitten", "hidden-size", "hiddensize"};
    enum { COUNT = sizeof WORDS / sizeof *WORDS };
    EXPECT(text_distance("kitten", "sitting") == 3, "%d", text_distance("kitten", "sitting"));
    for (int i = 0; i < COUNT; i++)
        for (int j = 0; j < COUNT; j++) {
            int d = text_distance(WORDS[i], WORDS[j]);
            EXPECT((d == 0) == (i == j), "%s %s", WORDS[i], WORDS[j]);
            EXPECT(d == text_distance(WORDS[j], WORDS[i]), "%s %s", WORDS[i], WORDS[j]);
            for (int k = 0; k < COUNT; k++)
                EXPECT(d <= text_distance(WORDS[i], WORDS[k]) + text_distance(WORDS[k], WORDS[j]), "%s %s %s",
                       WORDS[i], WORDS[k], WORDS[j]);
        }
}

static void nearest_name_is_near(void) {
    static const char *const NAMES[] = {"hidden-size", "num-layers", "lr", "micro-batch-size"};
    const char *found = text_nearest("hiden-sise", NAMES, 4);
    EXPECT(found == NAMES[0], "%s", found ? found : "none");
    EXPECT(text_nearest("micro-batchsize", NAMES, 4) == NAMES[3], "micro-batch-size");
    EXPECT(text_nearest("num-layers", NAMES, 4) == NAMES[1], "itself");
    EXPECT(text_nearest("tokenizer-model", NAMES, 4) == NULL, "none is near");
    EXPECT(text_nearest("x", NAMES, 0) == NULL, "none at all");
}

static void text_grows(void) {
    Text text = {0};
    EXPECT(strcmp(text_string(&text), "") == 0, "empty");
    for (int i = 0; i < 1000; i++) text_add(&text, "%d,", i);
    EXPECT(text.size == 3890 && strlen(text.data) == text.size, "%zu bytes", text.size);
    EXPECT(strncmp(text.data, "0,1,2,", 6) == 0 && strcmp(text.data + 3882, "998,999,") == 0, "%s",
           text.data);
    text_add_bytes(&text, "a\0b", 3);
    EXPECT(text.size == 3893 && memcmp(text.data + 3890, "a\0b", 4) == 0, "bytes with a zero");
    text_free(&text);
    EXPECT(!text.data && !text.size, "freed");
}

static void files_are_whole_or_absent(void) {
    char path[512], missing[512], *data = NULL;
    size_t size = 0;
    snprintf(path, sizeof path, "%s/file", harness_folder());
    snprintf(missing, sizeof missing, "%s/no/such", harness_folder());
    EXPECT(!file_exists(path), "not yet");
    EXPECT_OK(file_write(path, "longer than the next", 20));
    EXPECT_OK(file_write(path, "a\0b", 3));
    EXPECT(file_exists(path), "now");
    EXPECT_OK(file_read(path, 3, &data, &size));
    EXPECT(size == 3 && data && memcmp(data, "a\0b", 4) == 0, "%zu bytes", size);
    free(data);
    EXPECT(file_read(path, 2, &data, &size) == ERR_DATA && strstr(fail_message(), path), "%s",
           fail_message());
    EXPECT(file_read(missing, 9, &data, &size) == ERR_NO_INPUT && strstr(fail_message(), missing), "%s",
           fail_message());
    EXPECT(file_read(harness_folder(), 9, &data, &size) == ERR_NO_INPUT, "a folder: %s", fail_message());
}

// What cannot be created is no missing input; and a device is never replaced by a file.
static void creations_have_their_own_status(void) {
    char missing[512], plain[512], below[520], pipe[512];
    snprintf(missing, sizeof missing, "%s/no/such", harness_folder());
    snprintf(plain, sizeof plain, "%s/plain", harness_folder());
    snprintf(below, sizeof below, "%s/below", plain);
    snprintf(pipe, sizeof pipe, "%s/pipe", harness_folder());
    EXPECT(file_write(missing, "x", 1) == ERR_CREATE && strstr(fail_message(), missing), "%s",
           fail_message());
    EXPECT_OK(file_write(plain, "x", 1));
    EXPECT(file_write(below, "x", 1) == ERR_CREATE, "below a file: %s", fail_message());
    EXPECT(file_write(harness_folder(), "x", 1) == ERR_CREATE, "a folder: %s", fail_message());
    EXPECT(mkfifo(pipe, 0600) == 0, "%s", pipe);
    EXPECT(file_write(pipe, "x", 1) == ERR_CREATE && strstr(fail_message(), "not a regular file"), "%s",
           fail_message());
    errno = EACCES;
    EXPECT(create_status() == ERR_PERMISSION, "%d", (int)create_status());
    errno = EROFS;
    EXPECT(create_status() == ERR_PERMISSION, "%d", (int)create_status());
    errno = ENOSPC;
    EXPECT(create_status() == ERR_CREATE, "%d", (int)create_status());
    errno = EIO;
    EXPECT(create_status() == ERR_IO, "%d", (int)create_status());
}

// A pipe without a writer would block an ordinary open for ever.
static void pipes_are_not_waited_for(void) {
    char pipe[512], *data;
    size_t size;
    snprintf(pipe, sizeof pipe, "%s/waiting", harness_folder());
    EXPECT(mkfifo(pipe, 0600) == 0, "%s", pipe);
    alarm(5);
    EXPECT(file_read(pipe, 9, &data, &size) == ERR_NO_INPUT && strstr(fail_message(), "not a regular file"),
           "%s", fail_message());
    alarm(0);
}

static void control_characters_are_visible(void) {
    static const char GIVEN[] = "a\n\x1b[2J\x7f\xc2\x9bm\xc2\xa0\xc3\x9b\x9b\xc2";
    Text text = {0};
    text_add_visible(&text, GIVEN, sizeof GIVEN - 1);
    EXPECT(!strcmp(text_string(&text), "a\\u000a\\u001b[2J\\u007f\\u009bm\xc2\xa0\xc3\x9b\x9b\xc2"), "%s",
           text_string(&text));
    text_free(&text);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"integers_parse_whole_or_not", integers_parse_whole_or_not},
                                      {"reals_parse_whole_or_not", reals_parse_whole_or_not},
                                      {"distance_is_a_metric", distance_is_a_metric},
                                      {"nearest_name_is_near", nearest_name_is_near},
                                      {"text_grows", text_grows},
                                      {"files_are_whole_or_absent", files_are_whole_or_absent},
                                      {"creations_have_their_own_status", creations_have_their_own_status},
                                      {"pipes_are_not_waited_for", pipes_are_not_waited_for},
                                      {"control_characters_are_visible", control_characters_are_visible},
                                      {0}},
                       argc, argv);
}
