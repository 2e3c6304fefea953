//! What a node says before it relays a client to its group's primary: that it is of the group, and
//! whether the client has given the password.
//!
//! The mark is `relayed TOKEN WHO\r\n`. The answer is `RELAYED\r\n`, or a reason and the
//! connection's end; the client's own bytes follow the answer.

use remora::connection::token::Token;

const WORD: &[u8] = b"relayed ";
/// The token, in hexadecimal digits.
const TOKEN_BYTES: usize = 32;
const MARK_BYTES: usize = WORD.len() + TOKEN_BYTES + " 0\r\n".len();

/// The answer of a node that serves the client.
pub(crate) const ACCEPTED: &[u8] = b"RELAYED\r\n";

/// What the node that relays knows of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// It has not given the password.
    Stranger,
    /// It has.
    Known,
    /// There, nobody is asked for one.
    Anybody,
}

/// What a connection begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// A mark of so many bytes, with a token.
    Mark(usize, [u8; 16], Who),
    /// What may become a mark with more bytes.
    Part,
    /// A client's first request.
    Request,
}

/// The mark for a client.
pub(super) fn mark(token: &Token, who: Who) -> Vec<u8> {
    let digit = match who {
        Who::Stranger => 0,
        Who::Known => 1,
        Who::Anybody => 2,
    };
    let token = u128::from_be_bytes(token.to_bytes());
    format!("relayed {token:032x} {digit}\r\n").into_bytes()
}

/// Looks at what a connection begins with.
pub(super) fn begin(input: &[u8]) -> Begin {
    let head = input.len().min(WORD.len());
    if input[..head] != WORD[..head] {
        return Begin::Request;
    }
    let line = &input[..input.len().min(MARK_BYTES)];
    if line.len() < MARK_BYTES && !line.contains(&b'\n') {
        return Begin::Part;
    }
    read(line).map_or(Begin::Request, |(token, who)| Begin::Mark(MARK_BYTES, token, who))
}

fn read(line: &[u8]) -> Option<([u8; 16], Who)> {
    let (token, who) = line.strip_prefix(WORD)?.split_at_checked(TOKEN_BYTES)?;
    let token: Token = std::str::from_utf8(token).ok()?.parse().ok()?;
    let who = match who {
        b" 0\r\n" => Who::Stranger,
        b" 1\r\n" => Who::Known,
        b" 2\r\n" => Who::Anybody,
        _ => return None,
    };
    Some((token.to_bytes(), who))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let token = Token::new(*b"sixteen bytes \x01\xff").unwrap();
        for who in [Who::Stranger, Who::Known, Who::Anybody] {
            let bytes = mark(&token, who);
            let all = [&bytes[..], b"get k\r\n"].concat();
            assert_eq!(begin(&all), Begin::Mark(bytes.len(), token.to_bytes(), who));
            for cut in 0..bytes.len() {
                assert_eq!(begin(&bytes[..cut]), Begin::Part, "{cut}");
            }
        }
    }

    #[test]
    fn all_else_is_a_request() {
        let digits = "0123456789abcdef".repeat(2);
        for text in [
            "get k\r\n".to_owned(),
            "replace k 0 0 1\r\n".to_owned(),
            "relayed\r\n".to_owned(),
            "relayed x\r\n".to_owned(),
            format!("relayed {digits} 3\r\n"),
            format!("relayed {digits} 1\n\n"),
            format!("relayed {} 1\r\n", "0".repeat(32)),
            format!("relayed {} 1\r\n", "g".repeat(32)),
            format!("relayed {} 1\r\n", "é".repeat(16)),
            "relayed ".to_owned() + &"0".repeat(1000),
            "\u{80}".to_owned(),
        ] {
            assert_eq!(begin(text.as_bytes()), Begin::Request, "{text:?}");
        }
    }
}
