//! A secret by which a server admits clients.
//!
//! Servers compare it with what a client shows when it connects: `remora node` in
//! `command/src/node/server.rs` (and, to load kernels, in `kernels.rs` beside it), the store in
//! `store/src/way/door.rs` and, for memcached's clients, `store/src/front/memcached/session.rs`, a
//! group's nodes in `cluster/src/door.rs`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A secret by which a client is admitted: 16 bytes, written as 32 hexadecimal digits.
///
/// It crosses the network unencrypted, as all of RoCE does.
#[derive(Clone, Copy)]
pub struct Token([u8; 16]);

/// The text is not a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "a token has 32 hexadecimal digits, not all of them zero; make one with: openssl rand -hex 16"
)]
pub struct TokenError;

impl Token {
    /// Makes a token of sixteen bytes, which should be random; `None` if all are zero.
    pub fn new(bytes: [u8; 16]) -> Option<Token> {
        (bytes != [0; 16]).then_some(Token(bytes))
    }

    /// The bytes.
    pub fn to_bytes(&self) -> [u8; 16] {
        self.0
    }

    /// Compares in constant time, so that the time does not tell how many bytes match.
    pub fn matches(&self, shown: Option<&Token>) -> bool {
        let shown = shown.map_or([0; 16], |t| t.0);
        let differing = self.0.iter().zip(shown).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differing) == 0
    }
}

impl FromStr for Token {
    type Err = TokenError;
    fn from_str(text: &str) -> Result<Token, TokenError> {
        let digits = text.trim().as_bytes();
        if digits.len() != 32 {
            return Err(TokenError);
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (hex(pair[0])? << 4) | hex(pair[1])?;
        }
        Token::new(bytes).ok_or(TokenError)
    }
}

fn hex(digit: u8) -> Result<u8, TokenError> {
    let value = char::from(digit).to_digit(16).ok_or(TokenError)?;
    Ok(value as u8)
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Hides the secret, for logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "00112233445566778899aabbccddeeff";

    #[test]
    fn tokens_match_themselves_only() {
        let token: Token = TOKEN.parse().unwrap();
        assert!(token.matches(Some(&token)));
        let other = "00112233445566778899aabbccddeefe".parse().unwrap();
        assert!(!token.matches(Some(&other)));
        assert!(!token.matches(None));
        assert_eq!(format!("{token:?}"), "Token(…)");
        let zeroes = "0".repeat(32);
        for wrong in ["", "12", &TOKEN[1..], "zz112233445566778899aabbccddeeff", &zeroes] {
            assert!(wrong.parse::<Token>().is_err(), "{wrong}");
        }
    }
}
