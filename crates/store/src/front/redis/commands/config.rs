//! `CONFIG`: what can be read and set while the server runs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::front::redis::command::{Call, Done, Wrong};
use crate::front::redis::glob::matches;
use crate::front::server_state::{DATABASES, ServerState};

/// Why a value cannot be set.
type Why = &'static str;

/// Sets a parameter to a value that is given as text.
type Set = fn(&ServerState, &str) -> Result<(), Why>;

/// A parameter.
struct Parameter {
    name: &'static str,
    show: fn(&ServerState) -> String,
    /// None: it is fixed.
    set: Option<Set>,
}

/// Names a parameter that is a number of the settings.
macro_rules! number {
    ($name:literal, $field:ident, $least:expr, $most:expr) => {
        Parameter {
            name: $name,
            show: |server| server.settings.$field.load(Relaxed).to_string(),
            set: Some(|server, text| set_number(&server.settings.$field, text, $least..=$most)),
        }
    };
}

const fn fixed(name: &'static str, show: fn(&ServerState) -> String) -> Parameter {
    Parameter { name, show, set: None }
}

const PARAMETERS: &[Parameter] = &[
    fixed("appendfsync", |server| {
        let entries = server.keeper.entries().into_iter();
        let known = entries.filter(|(name, _)| *name == "log_fsync").map(|(_, value)| value).next();
        known.unwrap_or_else(|| "no".to_owned())
    }),
    fixed("appendonly", |server| yes(server.keeper.is_logged())),
    Parameter {
        name: "client-output-buffer-limit",
        show: |server| format!("normal {} 0 0", server.settings.output_bytes.load(Relaxed)),
        set: Some(|server, text| {
            let word = text.strip_prefix("normal ").and_then(|rest| rest.split(' ').next());
            set_number(&server.settings.output_bytes, word.unwrap_or(text), 1 << 20..=1 << 40)
        }),
    },
    number!("client-query-buffer-limit", request_bytes, 1 << 20, 1 << 31),
    fixed("databases", |_| DATABASES.to_string()),
    Parameter {
        name: "maxclients",
        show: |server| server.settings.max_clients.load(Relaxed).to_string(),
        set: Some(|server, text| {
            let clients = number(text, 1..=1 << 20)?;
            if !server.allow_clients(clients) {
                return Err("the system allows this process fewer files (see `ulimit -Hn`)");
            }
            server.settings.max_clients.store(clients, Relaxed);
            Ok(())
        }),
    },
    fixed("maxmemory", |server| server.keyspace.bytes().1.to_string()),
    number!("maxmemory-clients", buffered_bytes, 1 << 20, 1 << 40),
    // What was used last is let go last, as far as CLOCK knows.
    fixed("maxmemory-policy", |server| {
        if server.keyspace.evicts() { "allkeys-lru" } else { "noeviction" }.to_owned()
    }),
    fixed("port", |server| server.ports.get().map_or(0, |ports| ports.0).to_string()),
    number!("proto-max-bulk-len", bulk_bytes, 1 << 20, 512 << 20),
    Parameter {
        name: "requirepass",
        show: |server| server.settings.password().unwrap_or_default(),
        set: Some(|server, text| {
            if text.is_empty() && server.is_public.load(Relaxed) {
                return Err("a server beyond loopback needs a password");
            }
            server.settings.set_password(Some(text.to_owned()));
            Ok(())
        }),
    },
    Parameter {
        name: "save",
        show: |_| String::new(),
        set: Some(|_, text| match text {
            // What clients and tests say who want no snapshots by the clock.
            "" => Ok(()),
            _ => Err("snapshots are made when the log has grown, and by SAVE and BGSAVE"),
        }),
    },
    Parameter {
        name: "slowlog-log-slower-than",
        show: |server| server.stats.slow_us().to_string(),
        set: Some(|server, text| {
            let us = text.parse().map_err(|_| "argument couldn't be parsed into an integer")?;
            server.stats.set_slow_us(us);
            Ok(())
        }),
    },
    Parameter {
        name: "slowlog-max-len",
        show: |server| server.stats.slow_len().to_string(),
        set: Some(|server, text| {
            let len: u64 = text.parse().map_err(|_| NO_NUMBER)?;
            if len > 100_000 {
                return Err("argument must be between 0 and 100000 inclusive");
            }
            server.stats.set_slow_len(len);
            Ok(())
        }),
    },
    number!("timeout", idle_s, 0, i32::MAX as u64),
];

const NO_NUMBER: Why = "argument couldn't be parsed into an integer";

fn yes(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

/// Sets a number to what [`number`] reads.
fn set_number(
    place: &AtomicU64,
    text: &str,
    range: std::ops::RangeInclusive<u64>,
) -> Result<(), Why> {
    place.store(number(text, range)?, Relaxed);
    Ok(())
}

/// Reads a number, which may have a unit as in Redis' files.
fn number(text: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, Why> {
    let lower = text.to_ascii_lowercase();
    let units = [("gb", 1u64 << 30), ("mb", 1 << 20), ("kb", 1 << 10), ("", 1)];
    let split = units.iter().find_map(|(unit, size)| Some((lower.strip_suffix(unit)?, *size)));
    let (digits, size) = split.unwrap_or((&lower, 1));
    let number = digits.parse::<u64>().map_err(|_| NO_NUMBER)?;
    let number = number.checked_mul(size).filter(|number| range.contains(number));
    number.ok_or("argument must be within its limits")
}

const HELP: &[&str] = &[
    "GET <pattern>",
    "    Return parameters matching the glob-like <pattern> and their values.",
    "SET <directive> <value>",
    "    Set the configuration <directive> to <value>.",
    "RESETSTAT",
    "    Reset statistics reported by the INFO command.",
];

/// `CONFIG GET | SET | RESETSTAT | HELP`.
pub(crate) fn config(call: &mut Call<'_>) -> Done {
    match () {
        () if call.is(1, "help") => call.help(HELP),
        () if call.is(1, "get") && call.len() > 2 => show(call),
        () if call.is(1, "set") && call.len() > 3 => set(call),
        () if call.is(1, "resetstat") && call.len() == 2 => {
            call.turn.server.reset_counts();
            call.reply.ok();
            Ok(())
        }
        () if ["get", "set", "resetstat"].iter().any(|word| call.is(1, word)) => call.arity(),
        () => call.no_subcommand(),
    }
}

fn show(call: &mut Call<'_>) -> Done {
    let patterns: Vec<_> = call.arguments.from(2).map(<[u8]>::to_ascii_lowercase).collect();
    let is_asked = |name: &str| patterns.iter().any(|pattern| matches(pattern, name.as_bytes()));
    let found: Vec<_> = PARAMETERS.iter().filter(|parameter| is_asked(parameter.name)).collect();
    call.reply.map(found.len());
    for parameter in found {
        call.reply.bulk(parameter.name.as_bytes());
        call.reply.bulk((parameter.show)(&call.turn.server).as_bytes());
    }
    Ok(())
}

fn set(call: &mut Call<'_>) -> Done {
    if call.len() % 2 == 1 {
        return Err(Wrong::Is("ERR wrong number of arguments for 'config|set' command"));
    }
    let mut changes: Vec<(String, _, Set, _)> = Vec::new();
    for index in (2..call.len()).step_by(2) {
        let name = String::from_utf8_lossy(call.at(index)).to_lowercase();
        let found = PARAMETERS.iter().find(|parameter| parameter.name == name);
        let Some(parameter) = found else {
            return Err(Wrong::says(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
            )));
        };
        let failed = |why: &str| {
            Wrong::says(format!(
                "ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"
            ))
        };
        if changes.iter().any(|(before, ..)| *before == name) {
            return Err(failed("duplicate parameter"));
        }
        let set = parameter.set.ok_or_else(|| failed("can't set immutable config"))?;
        // (Of other bytes, a password could not be given again.)
        let text = str::from_utf8(call.at(index + 1)).map_err(|_| failed("it is not UTF-8"))?;
        changes.push((name.clone(), (parameter.show)(&call.turn.server), set, text.to_owned()));
    }
    // All or none: what was set before the one that fails is set back.
    for at in 0..changes.len() {
        let (name, _, set, text) = &changes[at];
        if let Err(why) = set(&call.turn.server, text) {
            for (_, before, set, _) in &changes[..at] {
                set(&call.turn.server, before).unwrap_or_default();
            }
            return Err(Wrong::says(format!(
                "ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"
            )));
        }
    }
    call.reply.ok();
    Ok(())
}
