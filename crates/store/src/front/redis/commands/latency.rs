//! `LATENCY`: how long operations take. Events are not sampled, so there are none.

use crate::front::redis::command::{Call, Done, Wrong};
use crate::front::redis::commands::info::each_operation;

const HELP: &[&str] = &[
    "DOCTOR",
    "    Say where latencies are to be found.",
    "GRAPH <event>",
    "    Refused: events are not sampled here.",
    "HISTORY <event>",
    "    Return nothing: events are not sampled here.",
    "LATEST",
    "    Return nothing: events are not sampled here.",
    "RESET [<event> ...]",
    "    Return 0: events are not sampled here.",
    "HISTOGRAM [<name> ...]",
    "    Return how many calls took how long, by operation and way in: redis_get, ...",
    "    Of a command's name, those of its operation.",
];

/// `LATENCY DOCTOR | GRAPH | HISTORY | LATEST | RESET | HISTOGRAM | HELP`.
pub(crate) fn latency(call: &mut Call<'_>) -> Done {
    let sub = call.at(1).to_ascii_lowercase();
    match (sub.as_slice(), call.len()) {
        (b"help", 2) => return call.help(HELP),
        (b"latest", 2) | (b"history", 3) => call.reply.array(0),
        (b"reset", _) => call.reply.integer(0),
        (b"graph", 3) => {
            let event = String::from_utf8_lossy(call.at(2));
            let text = format!("ERR No samples available for event '{event}'");
            return Err(Wrong::says(text));
        }
        (b"doctor", 2) => call.reply.verbatim(
            "Events are not sampled here. LATENCY HISTOGRAM and INFO latencystats say how long \
             operations take, and SLOWLOG GET which took long.\n",
        ),
        (b"histogram", _) => histograms(call),
        (b"help" | b"latest" | b"history" | b"graph" | b"doctor", _) => return call.arity(),
        _ => return call.no_subcommand(),
    }
    Ok(())
}

/// Shows the latencies of the operations that are named, or of all.
fn histograms(call: &mut Call<'_>) {
    let names: Vec<_> = call.arguments.from(2).map(<[u8]>::to_ascii_lowercase).collect();
    let of_commands: Vec<_> = call
        .commands
        .iter()
        .filter(|command| names.iter().any(|name| name == command.name.as_bytes()))
        .map(|command| format!("redis_{}", command.op.name()))
        .collect();
    let mut found = Vec::new();
    each_operation(&call.turn.server, |name, histogram| {
        let is_named = names.iter().any(|asked| asked == name.as_bytes());
        if names.is_empty() || is_named || of_commands.contains(&name) {
            found.push((name, histogram));
        }
    });
    call.reply.map(found.len());
    for (name, histogram) in found {
        call.reply.bulk(name.as_bytes());
        call.reply.map(2);
        call.reply.bulk(b"calls");
        call.reply.integer(histogram.count() as i64);
        call.reply.bulk(b"histogram_usec");
        let steps = histogram.steps();
        call.reply.map(steps.len());
        for (us, count) in steps {
            call.reply.integer(us as i64);
            call.reply.integer(count as i64);
        }
    }
}
