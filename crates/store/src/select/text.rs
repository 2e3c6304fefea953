//! Whether texts are as wanted: for one row, and for many at once.

use memchr::memmem::Finder;

use super::condition::{Compare, TextAt, TextTest};
use super::regex::{Regex, RegexError};
use super::rows::{Places, Rows, Span, bits};

/// One of so many rows of a block must be of interest for a search through all of its bytes.
const SPARSE: u32 = 2;
/// So much of the bytes of a block must be texts.
const LOOSE: u32 = 4;

/// A condition on a text, ready to be used.
#[derive(Clone, Debug)]
pub(super) struct Text {
    pub at: TextAt,
    pub test: Matcher,
    /// Texts that are as the test says are wanted, or else the others.
    pub wanted: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Matcher {
    Compare(Compare, Box<[u8]>),
    Pieces(Pieces),
    Regex(Box<Regex>),
}

/// Whether a test becomes an automaton: a pattern does, and one of LIKE that has `_`.
pub(super) fn is_automaton(test: &TextTest) -> bool {
    match test {
        TextTest::Matches(_) => true,
        TextTest::Like(pattern) => {
            let mut rest = pattern.iter();
            while let Some(byte) = rest.next() {
                match byte {
                    b'_' => return true,
                    b'\\' => drop(rest.next()),
                    _ => {}
                }
            }
            false
        }
        TextTest::Compare(..) | TextTest::Contains(_) => false,
    }
}

impl Matcher {
    pub(super) fn new(test: &TextTest) -> Result<Matcher, RegexError> {
        Ok(match test {
            TextTest::Compare(compare, with) => Matcher::Compare(*compare, with.clone()),
            TextTest::Like(pattern) => like(pattern)?,
            TextTest::Contains(part) => {
                let middle = if part.is_empty() { vec![] } else { vec![finder(part)] };
                Matcher::Pieces(Pieces { middle, ..Pieces::default() })
            }
            TextTest::Matches(pattern) => Matcher::Regex(Box::new(Regex::new(pattern)?)),
        })
    }

    #[inline]
    pub(super) fn is_match(&self, text: &[u8]) -> bool {
        match self {
            Matcher::Compare(compare, with) => compare.holds(text.cmp(with)),
            Matcher::Pieces(pieces) => pieces.is_match(text),
            Matcher::Regex(regex) => regex.is_match(text),
        }
    }
}

/// Pieces of text that stand in this order, with any text between them.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    /// What the text begins with.
    begin: Box<[u8]>,
    /// What follows in it, none of them empty.
    middle: Vec<Finder<'static>>,
    /// What the text ends with.
    end: Box<[u8]>,
}

impl Pieces {
    /// How many there are that are compared or searched for.
    pub(super) fn count(&self) -> usize {
        let ends = [&self.begin, &self.end].into_iter().filter(|piece| !piece.is_empty());
        self.middle.len() + ends.count()
    }

    #[inline]
    fn is_match(&self, text: &[u8]) -> bool {
        let rest = self.between(text);
        rest.is_some_and(|rest| follow(&self.middle, rest))
    }

    /// The text between begin and end, if it has these.
    #[inline]
    fn between<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        text.strip_prefix(&*self.begin)?.strip_suffix(&*self.end)
    }
}

/// Whether pieces stand in a text in this order.
#[inline]
fn follow(pieces: &[Finder<'static>], mut text: &[u8]) -> bool {
    pieces.iter().all(|piece| match piece.find(text) {
        Some(at) => {
            text = &text[at + piece.needle().len()..];
            true
        }
        None => false,
    })
}

fn finder(piece: &[u8]) -> Finder<'static> {
    Finder::new(piece).into_owned()
}

/// Reads a pattern of LIKE. One with `_` becomes a regular expression.
fn like(pattern: &[u8]) -> Result<Matcher, RegexError> {
    // Between two of the `pieces` there is any text. A part is a byte, or any character.
    let mut pieces = vec![Vec::new()];
    let mut rest = pattern.iter();
    while let Some(byte) = rest.next() {
        let part = match byte {
            b'%' => {
                pieces.push(Vec::new());
                continue;
            }
            b'_' => None,
            b'\\' => Some(*rest.next().unwrap_or(byte)),
            _ => Some(*byte),
        };
        if let Some(piece) = pieces.last_mut() {
            piece.push(part);
        }
    }
    let Some(pieces) = pieces.iter().map(|piece| piece.iter().copied().collect()).collect() else {
        return Ok(Matcher::Regex(Box::new(Regex::whole(&as_regex(&pieces))?)));
    };
    let mut pieces: Vec<Vec<u8>> = pieces;
    let last = pieces.pop().unwrap_or_default();
    if pieces.is_empty() {
        return Ok(Matcher::Compare(Compare::Equal, last.into()));
    }
    let begin = pieces.remove(0).into();
    let middle = pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| finder(piece));
    Ok(Matcher::Pieces(Pieces { begin, middle: middle.collect(), end: last.into() }))
}

fn as_regex(pieces: &[Vec<Option<u8>>]) -> String {
    const CHARACTER: &str = r"(?:[\x00-\x7F]|[\xC0-\xFF][\x80-\xBF]*)";
    let part = |part: &Option<u8>| part.map_or(CHARACTER.into(), |byte| format!(r"\x{byte:02X}"));
    let pieces = pieces.iter().map(|piece| piece.iter().map(part).collect::<String>());
    pieces.collect::<Vec<_>>().join(".*")
}

impl Text {
    #[inline]
    pub(super) fn holds(&self, row: &[u8]) -> bool {
        self.test.is_match(self.at.of(row)) == self.wanted
    }

    /// The rows of a block, of those in `mask`, of which it holds.
    pub(super) fn mark(&self, rows: &Rows<'_>, mask: u64) -> u64 {
        if let Matcher::Pieces(pieces) = &self.test
            && let Some((first, others)) = pieces.middle.split_first()
            && mask.count_ones() * SPARSE >= rows.count() as u32
            && let Some(region) = self.region(rows)
        {
            let matching = self.search(pieces, (first, others), rows, mask, region);
            return if self.wanted { matching } else { mask & !matching };
        }
        let holds = |row: &usize| self.holds(rows.row(*row));
        bits(mask).filter(holds).fold(0, |marks, row| marks | 1 << row)
    }

    /// Finds the rows that match by one search for the first piece through the bytes of all of
    /// them: where that piece is rare, this is the pace of that search.
    fn search(
        &self,
        pieces: &Pieces,
        (first, others): (&Finder<'static>, &[Finder<'static>]),
        rows: &Rows<'_>,
        mask: u64,
        region: Span,
    ) -> u64 {
        let bytes = region.of(rows.bytes);
        let (mut marks, mut at, mut row) = (0, 0, 0);
        while let Some(found) = bytes.get(at..).and_then(|rest| first.find(rest)) {
            let found = at + found;
            // Rows stand in order, so those before are done with.
            let Some((next, span)) = self.row_from(rows, row, region, found) else { break };
            row = next;
            let (start, end) = (span.start as usize, (span.start + span.len) as usize);
            // What the pieces between begin and end may be in.
            let start = start + pieces.begin.len();
            if found < start {
                at = start;
                continue;
            }
            let text = self.at.of(rows.row(row));
            let behind = found - start + first.needle().len();
            let rest = pieces.between(text).and_then(|between| between.get(behind..));
            if mask & 1 << row != 0 && rest.is_some_and(|rest| follow(others, rest)) {
                marks |= 1 << row;
            }
            at = end.max(found + 1);
            row += 1;
        }
        marks
    }

    /// The first row from `row` on that ends behind `found`, and where its text lies in the region.
    #[inline]
    fn row_from(
        &self,
        rows: &Rows<'_>,
        row: usize,
        region: Span,
        found: usize,
    ) -> Option<(usize, Span)> {
        let text = |start: usize, len: usize| {
            let before = usize::from(self.at.offset).min(len);
            let most = self.at.len.map_or(usize::MAX, usize::from);
            Span { start: (start + before) as u32, len: (len - before).min(most) as u32 }
        };
        match rows.places {
            Places::Packed(len) => {
                let row = row.max(found / len);
                (row < rows.count()).then(|| (row, text(row * len, len)))
            }
            Places::Listed(spans) => {
                let behind = |span: &Span| (span.start - region.start + span.len) as usize > found;
                let next = row + spans.get(row..)?.iter().position(behind)?;
                let span = spans[next];
                Some((next, text((span.start - region.start) as usize, span.len as usize)))
            }
        }
    }

    /// The bytes from the first to the last row of a block, if the rows stand in order and texts
    /// are much of these bytes.
    fn region(&self, rows: &Rows<'_>) -> Option<Span> {
        let text = |len: u32| {
            let rest = len.saturating_sub(self.at.offset.into());
            self.at.len.map_or(rest, |len| rest.min(len.into()))
        };
        let (start, len, used) = match rows.places {
            Places::Packed(row) => {
                let len = u32::try_from(rows.bytes.len()).ok()?;
                (0, len, text(row as u32).saturating_mul(rows.count() as u32))
            }
            Places::Listed(spans) => {
                let start = spans.first()?.start;
                let (mut end, mut used) = (start, 0);
                for span in spans {
                    let behind = span.start.checked_add(span.len)?;
                    if span.start < end || behind as usize > rows.bytes.len() {
                        return None;
                    }
                    end = behind;
                    used += text(span.len);
                }
                (start, end - start, used)
            }
        };
        (len / LOOSE <= used).then_some(Span { start, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn like_is_as_in_sql() {
        let cases = [
            ("", "", true),
            ("", "a", false),
            ("%", "", true),
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("a%", "abc", true),
            ("%c", "abc", true),
            ("a%a", "a", false),
            ("ab%bc", "abc", false),
            ("%b%", "abc", true),
            ("%special%requests%", "no special odd requests.", true),
            ("%special%requests%", "requests special", false),
            ("%%a%%", "bab", true),
            ("a_c", "abc", true),
            ("a_c", "aöc", true),
            ("a_c", "ac", false),
            ("_", "\n", true),
            ("%_b", "b", false),
            (r"100\%", "100%", true),
            (r"100\%", "1000", false),
            (r"a\_c", "abc", false),
            (r"a\", r"a\", true),
            (r"_\\", r"x\", true),
            ("%a.c_", "xa.cd", true),
            ("%a.c_", "xabcd", false),
        ];
        for (pattern, text, matches) in cases {
            let matcher = Matcher::new(&TextTest::Like(pattern.as_bytes().into())).unwrap();
            assert_eq!(matcher.is_match(text.as_bytes()), matches, "{text} like {pattern}");
        }
    }
}
