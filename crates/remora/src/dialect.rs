//! Which dialect reliable connections speak, over how many paths the lossy one spreads packets, and
//! which congestion policy all follow.
//!
//! Two cards that both offer the lossy dialect use it (docs/lossy.md); programs that connect by
//! RDMA connection management need not know. With every other peer, cards are standard.

use remora_nic::qp::Congestion;
use remora_nic::wire::Dialect;
use thiserror::Error;

use crate::environment;

/// The environment variable that chooses the dialect that a card offers: `auto` (or nothing),
/// `standard` or `lossy`.
pub const DIALECT_VARIABLE: &str = "REMORA_DIALECT";
/// The environment variable that says over how many paths lossy connections spread their packets:
/// 1 (the default) to 64.
pub const PATHS_VARIABLE: &str = "REMORA_PATHS";
/// The environment variable that chooses the congestion policy of reliable connections that choose
/// none themselves: a name of [`Congestion`], `aimd` by default.
pub const CONGESTION_VARIABLE: &str = "REMORA_CONGESTION";
/// The most paths.
pub const PATHS_MAX: u8 = 64;

/// Which dialect a card offers to its peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DialectChoice {
    /// The lossy one, except to cards of this machine while nothing is done to packets on purpose:
    /// there nothing is lost, and short messages take less time in the standard dialect.
    #[default]
    Auto,
    /// None: RoCE v2 as the specification has it.
    Standard,
    /// The lossy one, to every peer.
    Lossy,
}

/// Why the environment's wish for a dialect, paths or a congestion policy cannot be met.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BadDialect {
    /// There is no such dialect.
    #[error(
        "{DIALECT_VARIABLE} is `{0}`: `lossy` offers the lossy dialect to every peer, `standard` \
         to none, and `auto`, as without the variable, to those whose packets may be lost"
    )]
    Dialect(String),
    /// That is no number of paths.
    #[error("{PATHS_VARIABLE} is `{0}`: name a number of paths from 1 to {PATHS_MAX}")]
    Paths(String),
    /// There is no such policy.
    #[error(
        "{CONGESTION_VARIABLE} is `{0}`: name a congestion policy: {names}",
        names = names_of_policies()
    )]
    Congestion(String),
}

fn names_of_policies() -> String {
    Congestion::ALL.map(|policy| format!("`{}`", policy.name())).join(", ")
}

impl DialectChoice {
    /// What [`DIALECT_VARIABLE`] says.
    ///
    /// # Errors
    /// It names no dialect.
    pub fn from_environment() -> Result<DialectChoice, BadDialect> {
        DialectChoice::parse(&environment::text(DIALECT_VARIABLE))
    }

    fn parse(name: &str) -> Result<DialectChoice, BadDialect> {
        match name {
            "" | "auto" => Ok(DialectChoice::Auto),
            "standard" => Ok(DialectChoice::Standard),
            "lossy" => Ok(DialectChoice::Lossy),
            other => Err(BadDialect::Dialect(other.to_owned())),
        }
    }

    /// What a card offers to other machines.
    pub(crate) fn offers(self) -> Dialect {
        match self {
            DialectChoice::Auto | DialectChoice::Lossy => Dialect::LOSSY,
            DialectChoice::Standard => Dialect::STANDARD,
        }
    }
}

/// What [`PATHS_VARIABLE`] says.
///
/// # Errors
/// It is no number from 1 to 64.
pub(crate) fn paths_from_environment() -> Result<u8, BadDialect> {
    parse_paths(&environment::text(PATHS_VARIABLE))
}

fn parse_paths(text: &str) -> Result<u8, BadDialect> {
    match text.parse() {
        _ if text.is_empty() => Ok(1),
        Ok(paths @ 1..=PATHS_MAX) => Ok(paths),
        _ => Err(BadDialect::Paths(text.to_owned())),
    }
}

/// What [`CONGESTION_VARIABLE`] says.
///
/// # Errors
/// It names no policy.
pub(crate) fn congestion_from_environment() -> Result<Congestion, BadDialect> {
    parse_congestion(&environment::text(CONGESTION_VARIABLE))
}

fn parse_congestion(name: &str) -> Result<Congestion, BadDialect> {
    match name {
        "" => Ok(Congestion::default()),
        name => Congestion::named(name).ok_or_else(|| BadDialect::Congestion(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variables_name_a_dialect_and_a_number_of_paths() {
        assert_eq!(DialectChoice::parse(""), Ok(DialectChoice::Auto));
        assert_eq!(DialectChoice::parse("standard"), Ok(DialectChoice::Standard));
        assert_eq!(DialectChoice::parse("lossy"), Ok(DialectChoice::Lossy));
        let error = DialectChoice::parse("Lossy").unwrap_err().to_string();
        assert!(error.contains("`Lossy`") && error.contains("to every peer"), "{error}");
        assert_eq!((parse_paths(""), parse_paths("64")), (Ok(1), Ok(64)));
        for bad in ["0", "65", "-1", "many", " 8"] {
            let error = parse_paths(bad).unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("1 to 64"), "{error}");
        }
        assert_eq!(parse_congestion(""), Ok(Congestion::Aimd));
        assert_eq!(parse_congestion("swift"), Ok(Congestion::Swift));
        let error = parse_congestion("cubic").unwrap_err().to_string();
        assert!(error.contains("`cubic`") && error.contains("`dcqcn`, `swift`"), "{error}");
    }
}
