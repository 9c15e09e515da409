// Defaults and limits of options that layers without options need too.
#pragma once

#define VOCABULARY_DIVISOR 128 // of --make-vocab-size-divisible-by

#define MAX_WINDOW_PERIOD 48 // layers after which a pattern of --window-attn-skip-freq repeats at the latest

#define TEXT_OF(value)       TEXT_OF_TOKEN(value)
#define TEXT_OF_TOKEN(token) #token
