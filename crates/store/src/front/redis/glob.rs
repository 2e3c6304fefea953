//! Patterns of keys: `*`, `?`, `[a-z]`, `[^a]` and a backslash before what is meant as it is.

/// Whether all of `text` matches. The work is at most the product of both lengths, as a star that
/// was passed is never tried again once a later star was reached.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    // After the last star: where the pattern goes on, and how much of the text the star has.
    let mut star: Option<(usize, usize)> = None;
    while read < text.len() {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, read));
            continue;
        }
        if let Some(len) = one(&pattern[at..], text[read]) {
            at += len;
            read += 1;
            continue;
        }
        let Some((after, taken)) = star else { return false };
        star = Some((after, taken + 1));
        (at, read) = (after, taken + 1);
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// The length of the pattern's first piece, if it matches the byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'[' => class(pattern, byte),
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        exact => (exact == byte).then_some(1),
    }
}

/// The same for a class, which ends with the pattern if it is not closed.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let mut at = 1;
    let negated = pattern.get(at) == Some(&b'^');
    at += usize::from(negated);
    let mut is_in = false;
    while let Some(&first) = pattern.get(at) {
        match first {
            b']' => break,
            b'\\' if at + 1 < pattern.len() => {
                is_in |= pattern[at + 1] == byte;
                at += 2;
            }
            low if pattern.get(at + 1) == Some(&b'-') && at + 2 < pattern.len() => {
                let high = pattern[at + 2];
                is_in |= (low.min(high)..=low.max(high)).contains(&byte);
                at += 3;
            }
            exact => {
                is_in |= exact == byte;
                at += 1;
            }
        }
    }
    (is_in != negated).then_some((at + 1).min(pattern.len()))
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        let yes = [
            ("", ""),
            ("*", ""),
            ("*", "abc"),
            ("a?c", "abc"),
            ("a*c", "abbbc"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hallo"),
            ("h[a-c]llo", "hbllo"),
            ("h[c-a]llo", "hbllo"),
            ("a\\*", "a*"),
            ("[\\]]", "]"),
            ("*foo*", "xfoox"),
            ("a**b", "ab"),
            ("[abc", "b"),
            ("[\\", "\\"),
        ];
        for (pattern, text) in yes {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        let no =
            [("", "a"), ("a", ""), ("a?", "a"), ("h[^a]llo", "hallo"), ("a\\*", "ab"), ("[]", "]")];
        for (pattern, text) in no {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_take_bounded_work() {
        let pattern = b"a*".repeat(40_000);
        assert!(!matches(&[pattern.as_slice(), b"b"].concat(), &b"a".repeat(60_000)));
    }
}
