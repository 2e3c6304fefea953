/* Selects lines of a text while the text arrives: the parameters are a word, the payload is the
 * text, and the results are the lines that contain the word. */
#include "remora_kernel.h"

enum { WORD_MAX = 256, LINE_MAX = 16384, PIECE = 4096 };

static uint8_t word[WORD_MAX];
static uint8_t line[LINE_MAX];
static uint8_t piece[PIECE];

static int contains(const uint8_t *text, uint32_t text_len, uint32_t word_len) {
    for (uint32_t at = 0; at + word_len <= text_len; at++) {
        uint32_t same = 0;
        while (same < word_len && text[at + same] == word[same]) same++;
        if (same == word_len) return 1;
    }
    return 0;
}

REMORA_KERNEL {
    int32_t word_len = remora_params(word, WORD_MAX);
    if (word_len <= 0 || word_len > WORD_MAX) return REMORA_BAD_PARAMS;
    uint32_t line_len = 0;
    int32_t len;
    while ((len = remora_payload(piece, PIECE)) > 0) {
        for (int32_t i = 0; i < len; i++) {
            if (line_len == LINE_MAX) return REMORA_TOO_LONG;
            line[line_len++] = piece[i];
            if (piece[i] != '\n') continue;
            if (contains(line, line_len, (uint32_t)word_len)) {
                uint32_t status = remora_output(line, line_len);
                if (status) return status;
            }
            line_len = 0;
        }
    }
    if (len < 0) return (uint32_t)-len;
    /* The last line may have no line feed. */
    if (line_len && contains(line, line_len, (uint32_t)word_len))
        return remora_output(line, line_len);
    return REMORA_OK;
}
