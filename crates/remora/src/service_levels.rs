//! What the service levels of a card's queue pairs mean, and in which order those of a level have
//! turns.
//!
//! Verbs programs name a level in `ah_attr.sl`, or by the type of service of an id of RDMA CM, of
//! which the upper three bits count; others by
//! [`ConnectionParams::service_level`](crate::ConnectionParams::service_level).

use remora_nic::TurnOrder;
use remora_nic::service_level::{SERVICE_LEVELS, ServiceLevel, ServiceLevels};
use thiserror::Error;

use crate::environment;

/// The environment variable that says what service levels mean, such as
/// `1:weight=4,5:priority=1:weight=2`: level 1 has four times the share of the others of its
/// priority, and level 5 goes before all that have priority 0. What it does not name has priority 0
/// and weight 1.
pub const SERVICE_LEVELS_VARIABLE: &str = "REMORA_SERVICE_LEVELS";

/// The environment variable that says which of the queue pairs of a client and service level has
/// the next turn: a name of [`TurnOrder`], `in-turn` by default.
pub const TURN_ORDER_VARIABLE: &str = "REMORA_TURN_ORDER";

/// Why the environment's wish for an order of turns cannot be met.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{TURN_ORDER_VARIABLE} is `{0}`: name an order of turns: `in-turn` or `shortest-first`")]
pub struct BadTurnOrder(String);

/// What [`TURN_ORDER_VARIABLE`] says.
pub(crate) fn order_from_environment() -> Result<TurnOrder, BadTurnOrder> {
    parse_order(&environment::text(TURN_ORDER_VARIABLE))
}

fn parse_order(name: &str) -> Result<TurnOrder, BadTurnOrder> {
    match name {
        "" => Ok(TurnOrder::default()),
        name => TurnOrder::named(name).ok_or_else(|| BadTurnOrder(name.to_owned())),
    }
}

/// Why the environment's wish for service levels cannot be met.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "{SERVICE_LEVELS_VARIABLE}: `{0}` is no service level: write a level from 0 to 15, and its \
     weight (from 1 on) or its priority (0 to 255), such as `1:weight=4,5:priority=1`"
)]
pub struct BadServiceLevel(String);

/// What [`SERVICE_LEVELS_VARIABLE`] says.
pub(crate) fn from_environment() -> Result<ServiceLevels, BadServiceLevel> {
    parse(&environment::text(SERVICE_LEVELS_VARIABLE))
}

fn parse(text: &str) -> Result<ServiceLevels, BadServiceLevel> {
    let mut levels = ServiceLevels::default();
    for entry in text.split(',').filter(|entry| !entry.is_empty()) {
        let (level, means) = parse_entry(entry).ok_or_else(|| BadServiceLevel(entry.to_owned()))?;
        levels[level] = means;
    }
    Ok(levels)
}

fn parse_entry(entry: &str) -> Option<(usize, ServiceLevel)> {
    let (level, properties) = entry.split_once(':')?;
    let level = level.parse().ok().filter(|level| *level < SERVICE_LEVELS)?;
    let mut means = ServiceLevel::default();
    for property in properties.split(':') {
        match property.split_once('=')? {
            ("weight", weight) => means.weight = weight.parse().ok().filter(|w| *w > 0)?,
            ("priority", priority) => means.priority = priority.parse().ok()?,
            _ => return None,
        }
    }
    Some((level, means))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_names_an_order() {
        assert_eq!(parse_order(""), Ok(TurnOrder::InTurn));
        for order in TurnOrder::ALL {
            assert_eq!(parse_order(order.name()), Ok(order));
            let error = parse_order("longest-first").unwrap_err().to_string();
            assert!(error.contains("longest-first") && error.contains(order.name()), "{error}");
        }
    }

    #[test]
    fn the_variable_says_what_levels_mean() {
        assert_eq!(parse(""), Ok(ServiceLevels::default()));
        let levels = parse("1:weight=4,15:priority=1:weight=2,").unwrap();
        assert_eq!(levels[1], ServiceLevel { priority: 0, weight: 4 });
        assert_eq!(levels[15], ServiceLevel { priority: 1, weight: 2 });
        assert_eq!(levels[0], ServiceLevel::default());
        for bad in [
            "16:weight=1",
            "1",
            "1:weight",
            "1:weight=0",
            "1:weight=65536",
            "x:weight=1",
            "1:priority=256",
            "1:priority=-1",
            "1:speed=2",
            "1:",
        ] {
            let error = parse(&format!("0:weight=2,{bad}")).unwrap_err().to_string();
            assert!(error.contains(&format!("`{bad}`")) && error.contains("0 to 15"), "{error}");
        }
    }
}
