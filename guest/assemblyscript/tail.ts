// The last lines of a text: the parameter is how many (u32), the payload is the text, and the
// results are its last lines. No more than KEPT bytes of the text are ever kept.
import { BAD_PARAMS, OK, TOO_LONG, output, params, payload } from "./remora";

const KEPT: i32 = 32768;
const PIECE: i32 = 4096;

const kept = memory.data(KEPT);
const piece = memory.data(PIECE);
const wanted = memory.data(4);

const LINE_FEED: u8 = 10;

export function kernel(): u32 {
  if (params(wanted, 4) != 4) return BAD_PARAMS;
  let len: i32 = 0;
  let whole = true;
  for (;;) {
    const got = payload(piece, PIECE);
    if (got < 0) return -got;
    if (got == 0) break;
    if (len + got > KEPT) {
      // What was kept moves to the front; its oldest bytes make room.
      const excess = len + got - KEPT;
      memory.copy(kept, kept + excess, len - excess);
      len -= excess;
      whole = false;
    }
    memory.copy(kept + len, piece, got);
    len += got;
  }
  const from = lastLines(len, load<u32>(wanted));
  // A line that begins before what was kept is not known whole.
  if (from == 0 && !whole) return TOO_LONG;
  return len > from ? output(kept + from, len - from) : OK;
}

// Where the last `lines` lines begin, among `len` bytes.
function lastLines(len: i32, lines: u32): i32 {
  // A line feed at the end of the text ends the last line.
  let at = len > 0 && load<u8>(kept + len - 1) == LINE_FEED ? len - 1 : len;
  if (lines == 0) return len;
  while (at > 0) {
    if (load<u8>(kept + at - 1) == LINE_FEED && --lines == 0) return at;
    at--;
  }
  return 0;
}
