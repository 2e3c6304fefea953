//! Cuts the text form into words and signs.

use std::iter;
use std::ops::Range;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lexeme {
    /// A letter or `_`, then letters, digits and `_`.
    Name,
    /// A digit, then letters, digits and `_`.
    Number,
    /// Any characters between quotes on one line.
    Text,
    Newline,
    Comma,
    Colon,
    Dot,
    Plus,
    Ampersand,
    Is,
    To,
    Becomes,
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
    Open,
    Close,
    OpenPointer,
    ClosePointer,
    /// The end of the text.
    End,
}

/// The signs. A longer sign comes before a sign that it begins with.
const SIGNS: [(&str, Lexeme); 19] = [
    ("\n", Lexeme::Newline),
    (",", Lexeme::Comma),
    (":", Lexeme::Colon),
    (".", Lexeme::Dot),
    ("+", Lexeme::Plus),
    ("&", Lexeme::Ampersand),
    ("->", Lexeme::To),
    ("=>", Lexeme::Becomes),
    ("==", Lexeme::Equal),
    ("=", Lexeme::Is),
    ("!=", Lexeme::NotEqual),
    ("<=", Lexeme::AtMost),
    ("<", Lexeme::Less),
    (">=", Lexeme::AtLeast),
    (">", Lexeme::Greater),
    ("{", Lexeme::Open),
    ("}", Lexeme::Close),
    ("[", Lexeme::OpenPointer),
    ("]", Lexeme::ClosePointer),
];

/// Cuts `text` into words and signs with their byte ranges; a character that fits neither is
/// `None`.
pub(super) fn tokens(text: &str) -> impl Iterator<Item = (Option<Lexeme>, Range<usize>)> {
    let mut at = 0;
    iter::from_fn(move || {
        at += passed_over(&text[at..]);
        let (token, len) = first_token(&text[at..])?;
        let start = at;
        at += len;
        Some((token, start..at))
    })
}

/// The length in bytes of the blanks and comments at the start of `text`.
fn passed_over(text: &str) -> usize {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r']);
        if !rest.starts_with('#') {
            return text.len() - rest.len();
        }
        rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
    }
}

/// The first word or sign of `text` and its length in bytes; `None` at the end.
fn first_token(text: &str) -> Option<(Option<Lexeme>, usize)> {
    let first = text.chars().next()?;
    if let Some((sign, token)) = SIGNS.iter().find(|(sign, _)| text.starts_with(sign)) {
        return Some((Some(*token), sign.len()));
    }
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let word = text.find(|c| !is_of_word(c)).unwrap_or(text.len());
    Some(match first {
        '0'..='9' => (Some(Lexeme::Number), word),
        first if is_of_word(first) => (Some(Lexeme::Name), word),
        '"' => match text[1..].split(['"', '\n']).next().map_or(0, str::len) + 1 {
            end if text[end..].starts_with('"') => (Some(Lexeme::Text), end + 1),
            end => (None, end),
        },
        other => (None, other.len_utf8()),
    })
}

impl Lexeme {
    /// The token's name in messages.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Lexeme::Name => "a name",
            Lexeme::Number => "a number",
            Lexeme::Text => "a text in quotes",
            Lexeme::Newline => "the end of the line",
            Lexeme::Comma => "`,`",
            Lexeme::Colon => "`:`",
            Lexeme::Dot => "`.`",
            Lexeme::Plus => "`+`",
            Lexeme::Ampersand => "`&`",
            Lexeme::Is => "`=`",
            Lexeme::To => "`->`",
            Lexeme::Becomes => "`=>`",
            Lexeme::Equal => "`==`",
            Lexeme::NotEqual => "`!=`",
            Lexeme::Less => "`<`",
            Lexeme::AtMost => "`<=`",
            Lexeme::Greater => "`>`",
            Lexeme::AtLeast => "`>=`",
            Lexeme::Open => "`{`",
            Lexeme::Close => "`}`",
            Lexeme::OpenPointer => "`[`",
            Lexeme::ClosePointer => "`]`",
            Lexeme::End => "the end of the file",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_into_words_and_signs() {
        let cut = |text: &'static str| -> Vec<_> {
            tokens(text).map(|(token, at)| (token, &text[at])).collect()
        };
        use Lexeme::*;
        assert_eq!(cut(""), []);
        assert_eq!(cut(" \t\r# only a comment"), []);
        assert_eq!(
            cut("_a1 0x1F\n# b\n\"# c\"<=<"),
            [
                (Some(Name), "_a1"),
                (Some(Number), "0x1F"),
                (Some(Newline), "\n"),
                (Some(Newline), "\n"),
                (Some(Text), "\"# c\""),
                (Some(AtMost), "<="),
                (Some(Less), "<"),
            ]
        );
        assert_eq!(
            cut("=>===-!é\"open\n"),
            [
                (Some(Becomes), "=>"),
                (Some(Equal), "=="),
                (Some(Is), "="),
                (None, "-"),
                (None, "!"),
                (None, "é"),
                (None, "\"open"),
                (Some(Newline), "\n"),
            ]
        );
    }

    #[test]
    fn no_sign_hides_a_longer_one() {
        for (i, (sign, _)) in SIGNS.iter().enumerate() {
            assert!(SIGNS[..i].iter().all(|(earlier, _)| !sign.starts_with(earlier)), "{sign}");
        }
    }
}
