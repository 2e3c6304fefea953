//! JSON that comes from elsewhere: what is read of it can be printed, or written as JSON again.

use std::mem;

use remora::printable;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Parses JSON that another machine or program wrote. Every text in it becomes [`printable`].
///
/// # Errors
/// It is not JSON, or not of this form; says why, in printable words.
pub fn parse_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let words = |error: serde_json::Error| printable(&error.to_string());
    let mut value: Value = serde_json::from_slice(text).map_err(words)?;
    clean(&mut value);
    serde_json::from_value(value).map_err(words)
}

/// (serde_json does not nest deeper than 128.)
fn clean(value: &mut Value) {
    match value {
        Value::String(text) => *text = printable(text),
        Value::Array(items) => items.iter_mut().for_each(clean),
        Value::Object(fields) => {
            let cleaned = mem::take(fields).into_iter().map(|(name, mut value)| {
                clean(&mut value);
                (printable(&name), value)
            });
            *fields = cleaned.collect::<Map<_, _>>();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_text_is_cleaned_and_numbers_stay() {
        let hostile = r#"{"a\u001b[2J": ["\u202eevil", {"x": "\n"}], "n": [18446744073709551615]}"#;
        let read: BTreeMap<String, Value> = parse_json(hostile.as_bytes()).unwrap();
        let expected = r#"{"a?[2J":["?evil",{"x":"?"}],"n":[18446744073709551615]}"#;
        assert_eq!(serde_json::to_string(&read).unwrap(), expected);
    }

    #[test]
    fn complaints_are_printable() {
        let wrong: Result<bool, _> = parse_json(r#""\u001b]0;title\u0007""#.as_bytes());
        let complaint = wrong.unwrap_err();
        assert_eq!(complaint, printable(&complaint));
        assert!(parse_json::<Value>(&[b'['; 10_000]).is_err(), "nested too deeply");
    }
}
