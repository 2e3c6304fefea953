//! The server: its commands, its slow operations, its memory, its copies on the disk.

use std::sync::atomic::Ordering::Relaxed;

use crate::front::redis::command::{
    ADMIN, CONTAINER, Call, Command, Done, FAST, GROWS, NO_MULTI, NOT_INTEGER, READ, STRANGER,
    SYNTAX, WRITE, Wrong,
};
use crate::front::redis::glob::matches;
use crate::front::redis::request::decimal;

/// `TIME`.
pub(crate) fn time(call: &mut Call<'_>) -> Done {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    call.reply.array(2);
    call.reply.bulk(now.as_secs().to_string().as_bytes());
    call.reply.bulk(now.subsec_micros().to_string().as_bytes());
    Ok(())
}

/// `SAVE`.
pub(crate) fn save(call: &mut Call<'_>) -> Done {
    let saved = call.turn.server.keeper.save(false);
    saved.map_err(|why| Wrong::says(format!("ERR {why}")))?;
    call.reply.ok();
    Ok(())
}

/// `BGSAVE [SCHEDULE]`. In a transaction it begins at once, too, beside the changes of the commands
/// behind it, as it does beside those of other clients.
pub(crate) fn bgsave(call: &mut Call<'_>) -> Done {
    if call.len() > 2 || call.len() == 2 && !call.is(1, "schedule") {
        return Err(SYNTAX);
    }
    let begun = call.turn.server.keeper.save(true);
    begun.map_err(|why| Wrong::says(format!("ERR {why}")))?;
    let begun = if call.is_in_exec { "scheduled" } else { "started" };
    call.reply.simple(&format!("Background saving {begun}"));
    Ok(())
}

/// `LASTSAVE`.
pub(crate) fn lastsave(call: &mut Call<'_>) -> Done {
    call.reply.integer(call.turn.server.keeper.saved_s() as i64);
    Ok(())
}

/// `SHUTDOWN [NOSAVE | SAVE]`: the process that serves is told, and ends. While the disk refuses,
/// it would lose changes, and only ends if it is told not to care.
pub(crate) fn shutdown(call: &mut Call<'_>) -> Done {
    if call.len() > 2 {
        return Err(SYNTAX);
    }
    if call.is(1, "save") {
        let saved = call.turn.server.keeper.save(false);
        saved.map_err(|why| Wrong::says(format!("ERR {why}")))?;
    } else if call.len() > 1 && !call.is(1, "nosave") {
        return Err(SYNTAX);
    }
    if let Some(why) = call.turn.server.keeper.refuses().filter(|_| !call.is(1, "nosave")) {
        let text = format!("ERR Errors trying to SHUTDOWN: {why}. SHUTDOWN NOSAVE ends it anyway");
        return Err(Wrong::says(text));
    }
    call.turn.server.is_stopping.store(true, Relaxed);
    call.state.is_closing = true;
    Ok(())
}

/// `FUNCTION FLUSH [ASYNC | SYNC] | LIST [LIBRARYNAME …] [WITHCODE]`: there are no functions, so
/// none are left. All else is not offered.
pub(crate) fn function(call: &mut Call<'_>) -> Done {
    if call.is(1, "list") {
        return list_functions(call);
    }
    if !call.is(1, "flush") {
        return call.no_subcommand();
    }
    if call.len() > 3 {
        let sub = String::from_utf8_lossy(call.at(1)).into_owned();
        return Err(Wrong::says(format!(
            "ERR unknown subcommand or wrong number of arguments for '{sub}'. Try FUNCTION HELP."
        )));
    }
    if call.len() == 3 && !call.is(2, "sync") && !call.is(2, "async") {
        return Err(Wrong::Is("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"));
    }
    call.reply.ok();
    Ok(())
}

fn list_functions(call: &mut Call<'_>) -> Done {
    let (mut has_name, mut has_code, mut index) = (false, false, 2);
    while index < call.len() {
        if !has_code && call.is(index, "withcode") {
            has_code = true;
        } else if !has_name && call.is(index, "libraryname") {
            has_name = true;
            index += 1;
            if index == call.len() {
                return Err(Wrong::Is("ERR library name argument was not given"));
            }
        } else {
            let unknown = String::from_utf8_lossy(call.at(index));
            return Err(Wrong::says(format!("ERR Unknown argument {unknown}")));
        }
        index += 1;
    }
    call.reply.array(0);
    Ok(())
}

/// `WAIT replicas timeout`: how many backups hold what the client has changed. The session waits
/// for as many as are wanted before this is called; a store alone has none.
pub(crate) fn wait(call: &mut Call<'_>) -> Done {
    call.integer(1)?;
    match decimal(call.at(2)) {
        None => return Err(Wrong::Is("ERR timeout is not an integer or out of range")),
        Some(..0) => return Err(Wrong::Is("ERR timeout is negative")),
        Some(0..) => {}
    }
    if call.turn.is_elsewhere {
        return Err(Wrong::Is("ERR WAIT cannot be used with replica instances: ask the primary"));
    }
    call.reply.integer(call.turn.server.keeper.holders(call.state.written) as i64);
    Ok(())
}

const MEMORY_HELP: &[&str] = &[
    "STATS",
    "    Return the memory in use and its limit, in bytes.",
    "USAGE <key> [SAMPLES <count>]",
    "    Return the memory of a key and its value, in bytes.",
];

/// `MEMORY USAGE | STATS | HELP`.
pub(crate) fn memory(call: &mut Call<'_>) -> Done {
    match () {
        () if call.is(1, "help") => return call.help(MEMORY_HELP),
        () if call.is(1, "stats") && call.len() == 2 => {
            let (used, limit) = call.turn.server.keyspace.bytes();
            call.reply.map(3);
            call.reply.bulk(b"total.allocated");
            call.reply.integer(used as i64);
            call.reply.bulk(b"maxmemory");
            call.reply.integer(limit as i64);
            call.reply.bulk(b"clients.normal");
            call.reply.integer(call.turn.server.buffered.load(Relaxed) as i64);
        }
        () if call.is(1, "usage") && (call.len() == 3 || call.len() == 5) => {
            if call.len() == 5 {
                let samples = decimal(call.at(4)).ok_or(NOT_INTEGER)?;
                if !call.is(3, "samples") || samples < 0 {
                    return Err(SYNTAX);
                }
            }
            let ts = call.ts()?;
            match call.turn.server.keyspace.bytes_of(ts, call.at(2), call.turn.now) {
                Some(bytes) => call.reply.integer(bytes as i64),
                None => call.reply.null(),
            }
        }
        () if call.is(1, "usage") && call.len() > 3 => return Err(SYNTAX),
        () if call.is(1, "usage") || call.is(1, "stats") => return call.arity(),
        () => return call.no_subcommand(),
    }
    Ok(())
}

const SLOWLOG_HELP: &[&str] = &[
    "GET [<count>]",
    "    Return top <count> entries from the slowlog (default: 10, -1 means all).",
    "LEN",
    "    Return the length of the slowlog.",
    "RESET",
    "    Reset the slowlog.",
];

/// `SLOWLOG GET | LEN | RESET | HELP`.
pub(crate) fn slowlog(call: &mut Call<'_>) -> Done {
    match () {
        () if call.is(1, "help") => return call.help(SLOWLOG_HELP),
        () if call.is(1, "len") && call.len() == 2 => {
            call.reply.integer(call.turn.server.stats.slow_count() as i64);
        }
        () if call.is(1, "reset") && call.len() == 2 => {
            call.turn.server.stats.slow_reset();
            call.reply.ok();
        }
        () if call.is(1, "get") && call.len() <= 3 => {
            let most = if call.len() == 3 { decimal(call.at(2)).unwrap_or(-2) } else { 10 };
            if most < -1 {
                let wrong = "ERR count should be greater than or equal to -1";
                return Err(Wrong::Is(wrong));
            }
            let slow = call.turn.server.stats.slow(usize::try_from(most).unwrap_or(usize::MAX));
            call.reply.array(slow.len());
            for entry in slow {
                call.reply.array(6);
                call.reply.integer(entry.id as i64);
                call.reply.integer(entry.at_s as i64);
                call.reply.integer(entry.took_us as i64);
                call.reply.array(entry.arguments.len());
                entry.arguments.iter().for_each(|argument| call.reply.bulk(argument));
                call.reply.bulk(entry.peer.as_bytes());
                call.reply.bulk(entry.name.as_bytes());
            }
        }
        () if ["get", "len", "reset"].iter().any(|word| call.is(1, word)) => return call.arity(),
        () => return call.no_subcommand(),
    }
    Ok(())
}

const COMMAND_HELP: &[&str] = &[
    "(no subcommand)",
    "    Return details about all commands.",
    "COUNT",
    "    Return the total number of commands in this server.",
    "DOCS [<command-name> ...]",
    "    Return documentation details about multiple commands.",
    "GETKEYS <full-command>",
    "    Return the keys from a full command.",
    "INFO [<command-name> ...]",
    "    Return details about multiple commands.",
    "LIST [FILTERBY PATTERN <pattern>]",
    "    Return the names of commands.",
];

/// `COMMAND [COUNT | DOCS | GETKEYS | INFO | LIST | HELP]`.
pub(crate) fn command(call: &mut Call<'_>) -> Done {
    let commands = call.commands;
    match () {
        () if call.len() == 1 => {
            call.reply.array(commands.len());
            commands.iter().for_each(|command| describe(call, command));
        }
        () if call.is(1, "help") => return call.help(COMMAND_HELP),
        () if call.is(1, "count") && call.len() == 2 => {
            call.reply.integer(commands.len() as i64);
        }
        () if call.is(1, "info") => {
            let asked = asked(call);
            call.reply.array(asked.len());
            for command in asked {
                match command {
                    _ if call.reply.is_full() => break,
                    Some(command) => describe(call, command),
                    None => call.reply.null(),
                }
            }
        }
        () if call.is(1, "docs") => {
            let asked: Vec<_> = asked(call).into_iter().flatten().collect();
            call.reply.map(asked.len());
            for command in asked {
                if call.reply.is_full() {
                    break;
                }
                document(call, command);
            }
        }
        () if call.is(1, "list") => return list(call),
        () if call.is(1, "getkeys") && call.len() > 3 => return keys(call),
        () if call.is(1, "count") || call.is(1, "getkeys") => return call.arity(),
        () => return call.no_subcommand(),
    }
    Ok(())
}

/// The commands that are named from the second argument on; all, if none is.
fn asked(call: &Call<'_>) -> Vec<Option<&'static Command>> {
    if call.len() == 2 {
        return call.commands.iter().map(Some).collect();
    }
    let named = |name: &[u8]| {
        call.commands.iter().find(|command| name.eq_ignore_ascii_case(command.name.as_bytes()))
    };
    call.arguments.from(2).map(named).collect()
}

fn describe(call: &mut Call<'_>, command: &Command) {
    let words = [
        (WRITE, "write", "@write"),
        (READ, "readonly", "@read"),
        (GROWS, "denyoom", ""),
        (ADMIN, "admin", "@admin"),
        (FAST, "fast", "@fast"),
        (STRANGER, "no_auth", ""),
        (NO_MULTI, "no_multi", ""),
    ];
    let flags: Vec<_> = words.iter().filter(|(flag, ..)| command.has(*flag)).collect();
    let categories: Vec<_> = flags.iter().filter(|(.., name)| !name.is_empty()).collect();
    let reply = &mut call.reply;
    reply.array(10);
    reply.bulk(command.name.as_bytes());
    reply.integer(command.arity.into());
    reply.set(flags.len());
    flags.iter().for_each(|(_, name, _)| reply.simple(name));
    let (first, last, step) = command.keys;
    [first, last, step].into_iter().for_each(|at| reply.integer(at.into()));
    reply.set(categories.len() + 1);
    categories.iter().for_each(|(.., name)| reply.simple(name));
    reply.simple(&format!("@{}", command.group));
    // No hints, no key specifications beyond the three numbers, no subcommands of their own.
    (0..2).for_each(|_| reply.set(0));
    reply.array(0);
}

fn document(call: &mut Call<'_>, command: &Command) {
    let container = command.has(CONTAINER);
    let reply = &mut call.reply;
    reply.bulk(command.name.as_bytes());
    reply.map(if container { 3 } else { 2 });
    reply.bulk(b"summary");
    reply.bulk(command.summary.as_bytes());
    reply.bulk(b"group");
    reply.bulk(command.group.as_bytes());
    if container {
        reply.bulk(b"arity");
        reply.integer(command.arity.into());
    }
}

fn list(call: &mut Call<'_>) -> Done {
    let pattern = match call.len() {
        2 => &b"*"[..],
        5 if call.is(2, "filterby") && call.is(3, "pattern") => call.at(4),
        _ => return Err(SYNTAX),
    };
    let is_asked = |command: &&Command| matches(pattern, command.name.as_bytes());
    let found: Vec<_> = call.commands.iter().filter(is_asked).collect();
    call.reply.array(found.len());
    found.iter().for_each(|command| call.reply.bulk(command.name.as_bytes()));
    Ok(())
}

fn keys(call: &mut Call<'_>) -> Done {
    let is_named = |command: &&Command| call.is(2, command.name);
    let found = call.commands.iter().find(is_named);
    let command = found.ok_or(Wrong::Is("ERR Invalid command specified"))?;
    let count = call.len() - 2;
    let (first, last, step) = command.keys;
    if first == 0 {
        return Err(Wrong::Is("ERR The command has no key arguments"));
    }
    if !command.takes(count) {
        return Err(Wrong::Is("ERR Invalid number of arguments specified for command"));
    }
    let last = if last < 0 { count as i32 + last } else { last };
    let places: Vec<_> = (first..=last).step_by(step.max(1) as usize).collect();
    call.reply.array(places.len());
    places.into_iter().for_each(|place| call.reply.bulk(call.arguments.at(place as usize + 2)));
    Ok(())
}
