//! Random bytes of the operating system: tokens and seeds.

use anyhow::{Context, Result};
use remora::connection::token::Token;
use rustix::rand::{GetRandomFlags, getrandom};

/// So many random bytes.
///
/// # Errors
/// The operating system has none.
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    // The call gives all of them at once up to 256.
    let got = getrandom(&mut bytes, GetRandomFlags::empty()).context("cannot draw at random")?;
    anyhow::ensure!(got == N, "the system drew {got} random bytes of {N}");
    Ok(bytes)
}

/// A new token.
///
/// # Errors
/// The operating system has no random bytes.
pub fn token() -> Result<Token> {
    loop {
        if let Some(token) = Token::new(bytes()?) {
            return Ok(token);
        }
    }
}
