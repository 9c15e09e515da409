// Defaults of options that layers without options need too.
#pragma once

#define VOCABULARY_DIVISOR 128 // of --make-vocab-size-divisible-by

#define TEXT_OF(value)       TEXT_OF_TOKEN(value)
#define TEXT_OF_TOKEN(token) #token
