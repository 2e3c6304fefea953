//! Variables of the environment whose text a reader understands or refuses.
//!
//! What a variable means is beside what it sets: the constants `…_VARIABLE` of this crate. Here are
//! those of the verbs library, which the command sets. `docs/run.md` lists all variables.

use std::env;
use std::ffi::OsString;

/// The address of a verbs program's card, or the addresses of several.
pub const ADDR_VARIABLE: &str = "REMORA_ADDR";
/// The level and the file of the verbs library's log.
pub const LOG_VARIABLE: &str = "REMORA_LOG";

/// Does a variable say something?
pub(crate) fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| !value.is_empty())
}

/// What a variable says; nothing if it is not set.
///
/// Bytes that are no UTF-8 become `U+FFFD`, which no word has: the reader of the text refuses it,
/// and shows it, as any other bad word.
pub fn text(variable: &str) -> String {
    env::var_os(variable).map_or_else(String::new, as_text)
}

fn as_text(value: OsString) -> String {
    value.into_string().unwrap_or_else(|value| value.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use crate::impair::Impairments;

    #[test]
    fn what_is_no_text_is_refused_as_a_bad_word_and_not_left_out() {
        let text = as_text(OsString::from_vec(b"loss=1%,\xFFrate=1G".to_vec()));
        assert_eq!(text, "loss=1%,\u{FFFD}rate=1G");
        let error = text.parse::<Impairments>().unwrap_err().to_string();
        assert!(error.contains("rate=1G` is no impairment"), "{error}");
        assert_eq!(as_text("udp".into()), "udp");
    }
}
