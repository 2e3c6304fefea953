//! What entitles a process to a session that is kept.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::{NAME_MAX, SessionToken, is_session_name};

/// Entitles a process of the same user to a session: the session's name, and its secret.
///
/// As text, for a file that only the user can read, it is the secret in hexadecimal digits, a
/// space, and the name.
///
/// ```
/// use remora::message::Ticket;
///
/// let ticket = Ticket { name: "store".into(), token: [7; 16] };
/// assert_eq!(ticket.to_string().parse(), Ok(ticket));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The session's name.
    pub name: String,
    /// Its secret.
    pub token: SessionToken,
}

/// A text is no ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "this is no ticket of a session: one has 32 hexadecimal digits, a space, and a name of at most \
     {NAME_MAX} bytes that a terminal shows"
)]
pub struct BadTicket;

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.token.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, " {}", self.name)
    }
}

/// Without the secret, which must not come into logs.
impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("name", &self.name).finish_non_exhaustive()
    }
}

impl FromStr for Ticket {
    type Err = BadTicket;

    fn from_str(text: &str) -> Result<Ticket, BadTicket> {
        let (digits, name) = text.split_once(' ').ok_or(BadTicket)?;
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = u128::from_str_radix(digits, 16).map_err(|_| BadTicket)?;
        if !is_hex || digits.len() != 32 || !is_session_name(name) {
            return Err(BadTicket);
        }
        Ok(Ticket { name: name.into(), token: number.to_be_bytes() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_a_secret_and_a_name() {
        let text = "000102030405060708090a0b0c0d0e0f rank 0";
        let ticket: Ticket = text.parse().unwrap();
        assert_eq!((ticket.name.as_str(), ticket.token[15]), ("rank 0", 15));
        assert_eq!(ticket.to_string(), text);
        assert!(!format!("{ticket:?}").contains("0e"), "a secret is not shown");
    }

    #[test]
    fn other_texts_are_none() {
        let digits = "0".repeat(32);
        let long = format!("{digits} {}", "x".repeat(NAME_MAX + 1));
        for text in ["", "x", &digits, &format!("{digits} "), &format!("+{digits} x"), &long] {
            assert_eq!(text.parse::<Ticket>(), Err(BadTicket), "{text}");
        }
        for text in [format!("+{} x", &digits[1..]), format!("{} x", &digits[1..])] {
            assert_eq!(text.parse::<Ticket>(), Err(BadTicket), "{text}");
        }
        for name in ["a\nb", "a\u{202e}b", "a\u{200b}b"] {
            assert_eq!(format!("{digits} {name}").parse::<Ticket>(), Err(BadTicket), "{name:?}");
        }
    }
}
