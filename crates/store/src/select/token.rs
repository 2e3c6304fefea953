//! Words of the language of predicates.

use std::ops::Range;

use super::condition::Compare;
use super::mistake::Mistake;
use super::value::Number;

/// A word and its place.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Lexeme {
    pub at: Range<usize>,
    pub word: Word,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Word {
    /// A column's name, or a word of the language.
    Name(String),
    Number(Number),
    Text(String),
    /// `$1` is 1.
    Parameter(usize),
    Compare(Compare),
    Open,
    Close,
    Comma,
    End,
}

/// Cuts a text into words; the last one is [`Word::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<Lexeme>, Mistake> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let (word, len) = word(&text[at..], first).map_err(|(len, says)| {
            let end = text.len().min(at + len);
            Mistake::new(at..end, says)
        })?;
        tokens.push(Lexeme { at: at..at + len, word });
        at += len;
    }
    tokens.push(Lexeme { at: text.len()..text.len(), word: Word::End });
    Ok(tokens)
}

/// The word that a text begins with, and its bytes; or the bytes that are wrong, and why.
fn word(text: &str, first: char) -> Result<(Word, usize), (usize, String)> {
    match first {
        '(' => Ok((Word::Open, 1)),
        ')' => Ok((Word::Close, 1)),
        ',' => Ok((Word::Comma, 1)),
        '\'' | '"' => quoted(text, first),
        '$' => {
            let len = 1 + run(&text[1..], |c| c.is_ascii_digit());
            let number = text[1..len].parse().ok().filter(|number| *number >= 1);
            let says = || (len, "a parameter is `$` and its number, from 1 on".to_owned());
            number.map(|number| (Word::Parameter(number), len)).ok_or_else(says)
        }
        '-' | '0'..='9' => {
            let digits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
            let len = 1 + run(&text[1..], digits);
            let says = || {
                let hint = "write 24, -3 or 0.05, of at most 36 digits; a date stands in quotes";
                (len, format!("`{}` is no number: {hint}", &text[..len]))
            };
            Number::parse(&text[..len]).map(|it| (Word::Number(it), len)).ok_or_else(says)
        }
        _ if first.is_ascii_alphabetic() || first == '_' => {
            let len = run(text, |c| c.is_ascii_alphanumeric() || c == '_');
            Ok((Word::Name(text[..len].to_owned()), len))
        }
        _ => compare(text).ok_or_else(|| {
            let says = format!("`{first}` means nothing here");
            (first.len_utf8(), says)
        }),
    }
}

fn compare(text: &str) -> Option<(Word, usize)> {
    let signs = [
        ("==", Compare::Equal),
        ("!=", Compare::NotEqual),
        ("<>", Compare::NotEqual),
        ("<=", Compare::LessOrEqual),
        (">=", Compare::GreaterOrEqual),
        ("=", Compare::Equal),
        ("<", Compare::Less),
        (">", Compare::Greater),
    ];
    let (sign, compare) = signs.into_iter().find(|(sign, _)| text.starts_with(sign))?;
    Some((Word::Compare(compare), sign.len()))
}

/// A text in quotes, in which two quotes stand for one.
fn quoted(text: &str, quote: char) -> Result<(Word, usize), (usize, String)> {
    let mut out = String::new();
    let mut rest = text[1..].char_indices();
    while let Some((at, c)) = rest.next() {
        if c != quote {
            out.push(c);
        } else if text[1 + at + 1..].starts_with(quote) {
            out.push(quote);
            rest.next();
        } else {
            return Ok((Word::Text(out), at + 2));
        }
    }
    Err((1, format!("this text has no end: close it with {quote}")))
}

/// The bytes at the begin of a text of which all characters are wanted.
fn run(text: &str, wanted: impl Fn(char) -> bool) -> usize {
    text.find(|c| !wanted(c)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Word> {
        tokens(text).unwrap().into_iter().map(|token| token.word).collect()
    }

    #[test]
    fn a_text_is_cut_into_words() {
        let name = |name: &str| Word::Name(name.into());
        let text = "price<=-0.5 AND(x!='it''s \"so\"')or $12 , ";
        let expected = [
            name("price"),
            Word::Compare(Compare::LessOrEqual),
            Word::Number(Number::parse("-0.5").unwrap()),
            name("AND"),
            Word::Open,
            name("x"),
            Word::Compare(Compare::NotEqual),
            Word::Text("it's \"so\"".into()),
            Word::Close,
            name("or"),
            Word::Parameter(12),
            Word::Comma,
            Word::End,
        ];
        assert_eq!(words(text), expected);
        assert_eq!(words("\"a\\d\"\"ä\""), [Word::Text("a\\d\"ä".into()), Word::End]);
    }

    #[test]
    fn what_is_no_word_is_named() {
        let refused = [
            ("a = 1994-01-01", "`1994`"),
            ("a = 12kg", "`12kg` is no number"),
            ("a = \"x", "no end"),
            ("a = $0", "from 1 on"),
            ("a = €", "`€` means nothing"),
            ("a ! b", "`!` means nothing"),
        ];
        for (text, says) in refused {
            match tokens(text) {
                Err(mistake) => assert!(mistake.says.contains(says), "{text}: {mistake}"),
                // A date without quotes is a row of numbers, which the parser refuses.
                Ok(tokens) => assert_eq!(tokens.len(), 6, "{text}"),
            }
        }
    }
}
