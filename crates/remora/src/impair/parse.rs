//! Impairments as text: `loss=1%,delay=20us+-5us,rate=10G; in,peer=192.0.2.0/24,corrupt=0.1%`.
//!
//! Rules are separated by `;` or line ends, the parts of a rule by commas. `#` begins a comment.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use super::{Direction, IMPAIR_VARIABLE, Impairments, Peers, Rule, Share};

/// The longest text.
pub const TEXT_MAX: usize = 64 << 10;
/// The most rules.
pub const RULES_MAX: usize = 256;
/// The longest delay.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// The smallest rate, so that a packet takes seconds and not for ever.
const RATE_MIN: u64 = 1000;

/// A text that is no impairment.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BadImpairment {
    /// A part of a rule cannot be understood.
    #[error(
        "`{part}` is no impairment: {why}. An example: \
         loss=1%,delay=20us+-5us,reorder=0.1%,rate=10G,seed=7"
    )]
    Part {
        /// The part.
        part: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There are too many rules, or too many characters.
    #[error("the impairments are too long: at most {RULES_MAX} rules and {TEXT_MAX} bytes")]
    TooLong,
    /// The file cannot be read.
    #[error("cannot read the impairments in {path}: {why}; {IMPAIR_VARIABLE} names this file")]
    File {
        /// The file.
        path: String,
        /// The system's reason.
        why: String,
    },
}

impl FromStr for Impairments {
    type Err = BadImpairment;

    fn from_str(text: &str) -> Result<Impairments, BadImpairment> {
        let mut all = Impairments::default();
        if text.len() > TEXT_MAX {
            return Err(BadImpairment::TooLong);
        }
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or(""));
        for rule in lines.flat_map(|line| line.split(';')) {
            let rule = rule.trim();
            if matches!(rule, "" | "off") {
                continue;
            }
            let made = read_rule(rule, &mut all.seed)?;
            if all.rules.len() == RULES_MAX {
                return Err(BadImpairment::TooLong);
            }
            all.rules.extend(made);
        }
        Ok(all)
    }
}

/// Reads one rule; `None` if it has only the seed, which is for all.
fn read_rule(text: &str, seed: &mut Option<u64>) -> Result<Option<Rule>, BadImpairment> {
    let mut rule = Rule::default();
    let mut names: Vec<&str> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let wrong = |why| BadImpairment::Part { part: shorten(part), why };
        let name = part.split_once('=').map_or(part, |(name, _)| name.trim());
        if names.contains(&name) {
            return Err(wrong("this is said twice in one rule"));
        }
        read_part(part, &mut rule, seed).map_err(wrong)?;
        names.push(name);
    }
    if names.contains(&"queue") && rule.rate.is_none() {
        let why = "packets wait for a `rate`: name one in the same rule";
        return Err(BadImpairment::Part { part: shorten(text), why });
    }
    if names.contains(&"in") && names.contains(&"out") {
        rule.direction = None;
    }
    Ok(names.iter().any(|name| *name != "seed").then_some(rule))
}

/// What a message quotes of a text.
fn shorten(part: &str) -> String {
    crate::printable(&part.chars().take(60).collect::<String>())
}

/// Reads one part into `rule`, or into the seed, which is for all rules.
fn read_part(part: &str, rule: &mut Rule, seed: &mut Option<u64>) -> Result<(), &'static str> {
    let Some((key, value)) = part.split_once('=') else {
        rule.direction = Some(match part {
            "in" => Direction::In,
            "out" => Direction::Out,
            _ => return Err("write NAME=VALUE, or `in` or `out` for one direction"),
        });
        return Ok(());
    };
    let value = value.trim();
    match key.trim() {
        "loss" => rule.loss = share(value)?,
        "delay" => (rule.delay, rule.jitter) = delay(value)?,
        "reorder" => rule.reorder = share(value)?,
        "duplicate" => rule.duplicate = share(value)?,
        "corrupt" => rule.corrupt = share(value)?,
        "rate" => rule.rate = Some(rate(value)?),
        "queue" => rule.queue = bytes(value)?,
        "peer" => rule.peer = Some(peers(value)?),
        "seed" => {
            let number = value.parse().map_err(|_| "a seed is a whole number")?;
            if seed.replace(number).is_some() {
                return Err("there is one seed for all rules, and this is another");
            }
        }
        _ => {
            return Err("the names are loss, delay, reorder, duplicate, corrupt, rate, queue, \
                        peer and seed");
        }
    }
    Ok(())
}

fn share(value: &str) -> Result<Share, &'static str> {
    const WHY: &str = "write a share of the packets in per cent, 0% to 100%";
    let percent = value.strip_suffix('%').ok_or(WHY)?.trim_end();
    percent.parse().ok().and_then(Share::percent).ok_or(WHY)
}

/// A delay, with a jitter behind `+-` or `±`.
fn delay(value: &str) -> Result<(Duration, Duration), &'static str> {
    let (mean, jitter) = match value.split_once("+-").or_else(|| value.split_once('±')) {
        Some((mean, jitter)) => (duration(mean)?, duration(jitter)?),
        None => (duration(value)?, Duration::ZERO),
    };
    if jitter > mean {
        return Err("a delay cannot vary by more than it is");
    }
    Ok((mean, jitter))
}

fn duration(value: &str) -> Result<Duration, &'static str> {
    const WHY: &str = "write a time with its unit, as in 20us, 1.5ms or 1s, at most 60s";
    const UNITS: [(&str, f64); 5] =
        [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let value = value.trim();
    let read = |(unit, factor): &(&str, f64)| {
        let number = value.strip_suffix(unit)?.trim_end().parse::<f64>().ok()?;
        Duration::try_from_secs_f64(number * factor).ok()
    };
    UNITS.iter().find_map(read).filter(|time| *time <= DELAY_MAX).ok_or(WHY)
}

/// A whole number, of one with a decimal prefix; `None` if it is not less than 2⁶⁴.
fn scaled(value: &str) -> Option<u64> {
    let (number, factor) = match value.char_indices().last()? {
        (at, 'k' | 'K') => (&value[..at], 1e3),
        (at, 'M') => (&value[..at], 1e6),
        (at, 'G') => (&value[..at], 1e9),
        (at, 'T') => (&value[..at], 1e12),
        _ => (value, 1.0),
    };
    let number: f64 = number.trim_end().parse().ok()?;
    let scaled = number * factor;
    // The largest number is no float; the nearest one is 2⁶⁴.
    (0.0..u64::MAX as f64).contains(&scaled).then_some(scaled as u64)
}

fn rate(value: &str) -> Result<u64, &'static str> {
    const WHY: &str = "write bits a second, as in 10G or 500M, at least 1k and less than 2^64";
    let bare = ["bit/s", "bps", "bit"].iter().find_map(|unit| value.strip_suffix(unit));
    scaled(bare.unwrap_or(value).trim_end()).filter(|rate| *rate >= RATE_MIN).ok_or(WHY)
}

fn bytes(value: &str) -> Result<u64, &'static str> {
    const WHY: &str = "write bytes, as in 64kB or 1MB, less than 2^64";
    let bare = value.strip_suffix('B').unwrap_or(value).trim_end();
    scaled(bare).ok_or(WHY)
}

fn peers(value: &str) -> Result<Peers, &'static str> {
    const WHY: &str = "write an IP address, or a network as in 192.0.2.0/24";
    let (address, prefix) = match value.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| WHY)?)),
        None => (value, None),
    };
    let address: IpAddr = address.trim().parse().map_err(|_| WHY)?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.unwrap_or(bits);
    if prefix > bits { Err(WHY) } else { Ok(Peers { address, prefix }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Rule {
        let all: Impairments = text.parse().unwrap();
        assert_eq!(all.rules.len(), 1, "{text}");
        all.rules[0]
    }

    #[test]
    fn every_part_is_read() {
        let text = "in,peer=192.0.2.7/24,loss=1%,delay=20us+-5us,reorder=0.1%,duplicate=2 %,\
                    corrupt=100%,rate=10G,queue=64kB,seed=7";
        let us = Duration::from_micros;
        let rule = Rule {
            direction: Some(Direction::In),
            peer: Some(Peers { address: "192.0.2.7".parse().unwrap(), prefix: 24 }),
            loss: Share::percent(1.0).unwrap(),
            delay: us(20),
            jitter: us(5),
            reorder: Share::percent(0.1).unwrap(),
            duplicate: Share::percent(2.0).unwrap(),
            corrupt: Share::ALL,
            rate: Some(10_000_000_000),
            queue: 64_000,
        };
        assert_eq!(text.parse(), Ok(Impairments { rules: vec![rule], seed: Some(7) }));
        assert_eq!(one("delay=1.5ms±0.5ms").delay, us(1500));
        assert_eq!(one("delay = 0.5s").delay, us(500_000));
        assert_eq!(one("rate=100kbit/s").rate, Some(100_000));
    }

    #[test]
    fn both_directions_by_name_are_as_none() {
        let directions =
            ["in", "out", "in,out", "out,in", "loss=1%"].map(|text| one(text).direction);
        assert_eq!(directions, [Some(Direction::In), Some(Direction::Out), None, None, None]);
    }

    #[test]
    fn what_is_said_twice_is_refused() {
        for text in ["loss=1%,loss=0%", "in,in", "delay=1us,queue=1kB,delay =2us"] {
            let error = text.parse::<Impairments>().unwrap_err().to_string();
            assert!(error.contains("twice"), "{text}: {error}");
        }
        for text in ["seed=1;seed=2", "loss=1%,seed=1\nloss=2%,seed=1"] {
            let error = text.parse::<Impairments>().unwrap_err().to_string();
            assert!(error.contains("one seed"), "{text}: {error}");
        }
        assert!("loss=1%; loss=2%".parse::<Impairments>().is_ok(), "each rule has its own");
    }

    #[test]
    fn rules_stand_in_lines_or_behind_semicolons() {
        let all: Impairments =
            "# a bad day\nout,loss=1%; in,loss=2%\n\noff # nothing\nseed=3\n".parse().unwrap();
        assert_eq!((all.rules.len(), all.seed), (2, Some(3)));
        assert!("off".parse::<Impairments>().unwrap().is_off());
        assert!("".parse::<Impairments>().unwrap().is_off());
    }

    #[test]
    fn a_network_holds_its_addresses() {
        let peers = |text: &str| peers(text).unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(peers("192.0.2.0/24").contains(ip("192.0.2.200")));
        assert!(!peers("192.0.2.0/24").contains(ip("192.0.3.1")));
        assert!(peers("192.0.2.1").contains(ip("::ffff:192.0.2.1")));
        assert!(
            peers("0.0.0.0/0").contains(ip("10.0.0.1")) && !peers("::/0").contains(ip("1.1.1.1"))
        );
        assert!(peers("fe80::/10").contains(ip("fe80::1")) && !peers("::1").contains(ip("::2")));
    }

    #[test]
    fn what_cannot_be_understood_is_explained() {
        let cases = [
            ("loss=1", "per cent"),
            ("loss=101%", "0% to 100%"),
            ("loss=NaN%", "per cent"),
            ("delay=20", "unit"),
            ("delay=-1us", "unit"),
            ("delay=61s", "60s"),
            ("delay=1us+-2us", "vary by more"),
            ("rate=0", "bits a second"),
            ("rate=infG", "bits a second"),
            ("rate=1e30G", "less than 2^64"),
            ("rate=18446744073709551616", "less than 2^64"),
            ("queue=x", "bytes"),
            ("queue=99999999999999999999", "less than 2^64"),
            ("loss=1%,queue=64kB", "a `rate`"),
            ("peer=host", "IP address"),
            ("peer=1.2.3.4/33", "IP address"),
            ("seed=-1", "whole number"),
            ("lose=1%", "the names are"),
            ("inside", "`in` or `out`"),
        ];
        for (text, why) in cases {
            let error = text.parse::<Impairments>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains(why), "{error}");
        }
        assert_eq!(
            "loss=1%;".repeat(RULES_MAX + 1).parse::<Impairments>(),
            Err(BadImpairment::TooLong)
        );
    }
}
