//! Text that comes from elsewhere, made fit to be printed.

/// The text as a person may see it on a terminal: each character that a terminal would obey instead
/// of showing it (escapes, line ends, overrides of the direction of writing, characters without a
/// width) is replaced by `?`.
///
/// ```
/// assert_eq!(remora::printable("no\x1b[2J way, \u{202e}evil"), "no?[2J way, ?evil");
/// ```
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_shown(c) { c } else { '?' }).collect()
}

/// Is this a character that is shown as itself?
fn is_shown(c: char) -> bool {
    // What debugging output escapes is what cannot be shown: besides these three, and accents when
    // they stand alone.
    let after_letter = format!("a{c}");
    matches!(c, '\\' | '\'' | '"') || after_letter.escape_debug().nth(1) == Some(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_replaced() {
        let ascii = "\0\n\r\t\x1b\x7f";
        let wide = "\u{9b}\u{ad}\u{200b}\u{200e}\u{2028}\u{202e}\u{2066}\u{feff}\u{e0041}\u{e000}";
        for c in ascii.chars().chain(wide.chars()) {
            assert_eq!(printable(&format!("a{c}b")), "a?b", "{c:?}");
        }
    }

    #[test]
    fn what_people_write_stays() {
        let text = r#"it's "C:\data", naïve, café, Größe, 中文, مرحبا, 😀"#;
        assert_eq!(printable(text), text);
        assert_eq!(printable("cafe\u{301}"), "cafe\u{301}");
    }
}
