//! The connection itself: who asks, in which version and database.

use std::sync::atomic::Ordering::Relaxed;

use crate::front::clients::Client;
use crate::front::redis::command::{Call, Command, Done, NOT_INTEGER, SYNTAX, Wrong};
use crate::front::redis::commands::keys;
use crate::front::redis::conversation::Replies;
use crate::front::redis::reply::Version;
use crate::front::redis::request::decimal;
use crate::stats::Way;

/// The version of Redis whose behaviour is followed, as clients ask for it.
pub(crate) const REDIS_VERSION: &str = "7.4.0";

/// `PING [message]`.
pub(crate) fn ping(call: &mut Call<'_>) -> Done {
    match call.len() {
        1 => call.reply.simple("PONG"),
        2 => call.reply.bulk(call.at(1)),
        _ => return Err(Wrong::Is("ERR wrong number of arguments for 'ping' command")),
    }
    Ok(())
}

/// `ECHO message`.
pub(crate) fn echo(call: &mut Call<'_>) -> Done {
    call.reply.bulk(call.at(1));
    Ok(())
}

/// `QUIT`.
pub(crate) fn quit(call: &mut Call<'_>) -> Done {
    call.reply.ok();
    call.state.is_closing = true;
    Ok(())
}

/// `RESET`.
pub(crate) fn reset(call: &mut Call<'_>) -> Done {
    let is_known = call.turn.server.settings.password().is_none();
    call.state.reset(is_known);
    call.reply.set_version(Version::Two);
    call.reply.simple("RESET");
    Ok(())
}

/// `SELECT index`.
pub(crate) fn select(call: &mut Call<'_>) -> Done {
    let database = keys::database(call.at(1))?;
    if call.turn.server.is_clustered && database != 0 {
        return Err(Wrong::Is("ERR SELECT is not allowed in cluster mode"));
    }
    call.state.database = database;
    call.state.publish();
    call.reply.ok();
    Ok(())
}

/// `ASKING`: the group that a slot's keys come from has sent the next command here.
pub(crate) fn asking(call: &mut Call<'_>) -> Done {
    if !call.turn.server.is_clustered {
        return Err(Wrong::Is("ERR This instance has cluster support disabled"));
    }
    // This one, and the next.
    call.state.asks = 2;
    call.reply.ok();
    Ok(())
}

/// `READONLY`: backups answer reads from their own copies, which may be old.
pub(crate) fn readonly(call: &mut Call<'_>) -> Done {
    read_copies(call, true)
}

/// `READWRITE`: all answers are the primary's.
pub(crate) fn readwrite(call: &mut Call<'_>) -> Done {
    read_copies(call, false)
}

fn read_copies(call: &mut Call<'_>, allowed: bool) -> Done {
    if !call.turn.server.is_clustered {
        return Err(Wrong::Is("ERR This instance has cluster support disabled"));
    }
    call.state.reads_copies = allowed;
    call.reply.ok();
    Ok(())
}

/// `AUTH [username] password`.
pub(crate) fn auth(call: &mut Call<'_>) -> Done {
    let (user, word) = match call.len() {
        2 => (&b"default"[..], call.at(1)),
        3 => (call.at(1), call.at(2)),
        _ => return Err(SYNTAX),
    };
    if call.len() == 2 && call.turn.server.settings.password().is_none() {
        return Err(Wrong::Is(
            "ERR AUTH <password> called without any password configured for the default user. \
             Are you sure your configuration is correct?",
        ));
    }
    log_in(call, user, word)?;
    call.reply.ok();
    Ok(())
}

fn log_in(call: &mut Call<'_>, user: &[u8], word: &[u8]) -> Done {
    let settings = &call.turn.server.settings;
    let open = settings.password().is_none();
    if user == b"default" && (open || settings.is_password(word)) {
        call.state.is_known = true;
        return Ok(());
    }
    call.turn.counts.auth_refused.add(1);
    Err(Wrong::Is("WRONGPASS invalid username-password pair or user is disabled."))
}

/// `HELLO [version [AUTH username password] [SETNAME name]]`.
pub(crate) fn hello(call: &mut Call<'_>) -> Done {
    let mut version = call.state.version;
    if call.len() > 1 {
        version = match decimal(call.at(1)) {
            Some(2) => Version::Two,
            Some(3) => Version::Three,
            Some(_) => return Err(Wrong::Is("NOPROTO unsupported protocol version")),
            None => {
                return Err(Wrong::Is("ERR Protocol version is not an integer or out of range"));
            }
        };
    }
    let (mut index, mut name) = (2, None);
    while index < call.len() {
        let left = call.len() - index - 1;
        if call.is(index, "auth") && left >= 2 {
            let user = call.after(&mut index)?;
            let word = call.after(&mut index)?;
            log_in(call, user, word)?;
        } else if call.is(index, "setname") && left >= 1 {
            name = Some(plain(call.after(&mut index)?, CLIENT_NAMES)?);
        } else {
            let option = String::from_utf8_lossy(call.at(index)).into_owned();
            return Err(Wrong::says(format!("ERR Syntax error in HELLO option '{option}'")));
        }
        index += 1;
    }
    if !call.state.is_known {
        return Err(Wrong::Is(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
             HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
             select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        call.state.client.words().name = name;
    }
    call.state.version = version;
    call.state.publish();
    call.reply.set_version(version);
    greet(call);
    Ok(())
}

fn greet(call: &mut Call<'_>) {
    let id = call.state.client.id as i64;
    let cluster = call.turn.server.keeper.cluster();
    let mode: &[u8] = if cluster.is_some() { b"cluster" } else { b"standalone" };
    let is_led = cluster.is_some_and(|cluster| cluster.leader().is_some());
    let role: &[u8] = if is_led { b"replica" } else { b"master" };
    let reply = &mut call.reply;
    reply.map(7);
    reply.bulk(b"server");
    reply.bulk(b"redis");
    reply.bulk(b"version");
    reply.bulk(REDIS_VERSION.as_bytes());
    reply.bulk(b"proto");
    reply.integer(if reply.version() == Version::Three { 3 } else { 2 });
    reply.bulk(b"id");
    reply.integer(id);
    reply.bulk(b"mode");
    reply.bulk(mode);
    reply.bulk(b"role");
    reply.bulk(role);
    reply.bulk(b"modules");
    reply.array(0);
}

/// The longest name of a client or its library, in bytes: each connection may keep three.
const NAME_MAX: usize = 1024;

/// What an error calls the names of clients.
const CLIENT_NAMES: &str = "Client names";

/// A name without blanks and line ends, which lists of clients could not show; `what` it is.
fn plain(name: &[u8], what: &str) -> Result<String, Wrong> {
    if name.len() > NAME_MAX {
        return Err(Wrong::says(format!("ERR {what} cannot be longer than {NAME_MAX} bytes.")));
    }
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Ok(String::from_utf8_lossy(name).into_owned());
    }
    let why = "cannot contain spaces, newlines or special characters.";
    Err(Wrong::says(format!("ERR {what} {why}")))
}

const NOT_TRACKED: Wrong = Wrong::Is(
    "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or \
     OPTOUT mode enabled",
);

const CLIENT_HELP: &[&str] = &[
    "GETNAME",
    "    Return the name of the current connection.",
    "GETREDIR",
    "    Return -1: keys are not tracked here.",
    "ID",
    "    Return the ID of the current connection.",
    "INFO",
    "    Return information about the current client connection.",
    "KILL <ip:port> | [ID <id>] [TYPE <type>] [USER <user>] [ADDR <ip:port>] [LADDR <ip:port>]",
    "     [SKIPME (YES|NO)] [MAXAGE <s>]",
    "    Kill connections.",
    "LIST [ID <id> ...]",
    "    Return information about client connections.",
    "NO-EVICT (ON|OFF)",
    "    Protect the current client connection from eviction: none are evicted here.",
    "NO-TOUCH (ON|OFF)",
    "    Accepted: reads by these clients do not alter what is evicted next.",
    "PAUSE <timeout> [WRITE|ALL]",
    "    Let commands of Redis' clients wait for <timeout> milliseconds: all, or those that write.",
    "REPLY (ON|OFF|SKIP)",
    "    Control the replies sent to the current connection.",
    "SETINFO (LIB-NAME|LIB-VER) <text>",
    "    Say which library the client is.",
    "SETNAME <name>",
    "    Assign the name <name> to the current connection.",
    "TRACKING OFF",
    "    Accepted: keys are not tracked here.",
    "TRACKINGINFO",
    "    Report that keys are not tracked for the current connection.",
    "UNBLOCK <id> [TIMEOUT|ERROR]",
    "    Return 0: no client is blocked here.",
    "UNPAUSE",
    "    End the pause.",
];

/// `CLIENT …`.
pub(crate) fn client(call: &mut Call<'_>) -> Done {
    let sub = call.at(1).to_ascii_lowercase();
    let count = call.len();
    match (sub.as_slice(), count) {
        (b"help", 2) => return call.help(CLIENT_HELP),
        (b"id", 2) => call.reply.integer(call.state.client.id as i64),
        (b"getname", 2) => {
            let name = call.state.client.words().name.clone();
            if name.is_empty() { call.reply.null() } else { call.reply.bulk(name.as_bytes()) }
        }
        (b"setname", 3) => {
            let name = plain(call.at(2), CLIENT_NAMES)?;
            call.state.client.words().name = name;
            call.reply.ok();
        }
        (b"setinfo", 4) => {
            let mut words = call.state.client.words();
            let (what, place) = match () {
                () if call.is(2, "lib-name") => ("lib-name", &mut words.library),
                () if call.is(2, "lib-ver") => ("lib-ver", &mut words.library_version),
                () => return Err(Wrong::Is("ERR Unrecognized option for CLIENT SETINFO")),
            };
            *place = plain(call.at(3), what)?;
            drop(words);
            call.reply.ok();
        }
        (b"info", 2) => {
            let line = line(&call.state.client, call.turn.now, call.commands);
            call.reply.verbatim(&line);
        }
        (b"list", _) => return list(call),
        (b"kill", 3..) => return kill(call),
        (b"reply", 3) => return replies(call),
        (b"pause", 3 | 4) => pause(call)?,
        (b"unpause", 2) => {
            call.turn.server.pause.end();
            call.reply.ok();
        }
        (b"unblock", 3 | 4) => unblock(call)?,
        (b"getredir", 2) => call.reply.integer(-1),
        (b"trackinginfo", 2) => untracked(call),
        (b"tracking", 3..) => tracking(call)?,
        (b"caching", 3) => return Err(NOT_TRACKED),
        (b"no-evict" | b"no-touch", 3) if call.is(2, "on") || call.is(2, "off") => call.reply.ok(),
        (b"no-evict" | b"no-touch", 3) => return Err(SYNTAX),
        (
            b"help" | b"id" | b"getname" | b"setname" | b"setinfo" | b"info" | b"kill" | b"reply"
            | b"no-evict" | b"no-touch" | b"pause" | b"unpause" | b"unblock" | b"getredir"
            | b"trackinginfo" | b"tracking" | b"caching",
            _,
        ) => return call.arity(),
        _ => return call.no_subcommand(),
    }
    Ok(())
}

/// `CLIENT PAUSE timeout [WRITE | ALL]`.
fn pause(call: &mut Call<'_>) -> Done {
    let all = match () {
        () if call.len() == 3 || call.is(3, "all") => true,
        () if call.is(3, "write") => false,
        () => return Err(Wrong::Is("ERR CLIENT PAUSE mode must be WRITE or ALL")),
    };
    match decimal(call.at(2)) {
        None => return Err(Wrong::Is("ERR timeout is not an integer or out of range")),
        Some(..0) => return Err(Wrong::Is("ERR timeout is negative")),
        Some(ms @ 0..) => call.turn.server.pause.begin(call.turn.now, ms as u64, all),
    }
    call.reply.ok();
    Ok(())
}

/// No command of a client waits for another client's, so none is ever unblocked.
fn unblock(call: &mut Call<'_>) -> Done {
    if call.len() == 4 && !call.is(3, "timeout") && !call.is(3, "error") {
        return Err(Wrong::Is("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
    }
    decimal(call.at(2)).ok_or(NOT_INTEGER)?;
    call.reply.integer(0);
    Ok(())
}

/// What `CLIENT TRACKINGINFO` says of every connection.
fn untracked(call: &mut Call<'_>) {
    call.reply.map(3);
    call.reply.bulk(b"flags");
    call.reply.set(1);
    call.reply.bulk(b"off");
    call.reply.bulk(b"redirect");
    call.reply.integer(-1);
    call.reply.bulk(b"prefixes");
    call.reply.array(0);
}

/// `CLIENT TRACKING`: a client that wants to be told what changes must not believe that it will be.
fn tracking(call: &mut Call<'_>) -> Done {
    match () {
        () if call.is(2, "off") => call.reply.ok(),
        () if call.is(2, "on") => {
            return Err(Wrong::Is(
                "ERR Client tracking is not supported: do not cache on this side",
            ));
        }
        () => return Err(SYNTAX),
    }
    Ok(())
}

fn replies(call: &mut Call<'_>) -> Done {
    call.state.replies = match () {
        () if call.is(2, "on") => Replies::On,
        () if call.is(2, "off") => Replies::Off,
        () if call.is(2, "skip") && call.state.replies == Replies::Off => Replies::Off,
        () if call.is(2, "skip") => Replies::SkipNext,
        () => return Err(SYNTAX),
    };
    if call.state.replies == Replies::On {
        call.reply.ok();
    }
    Ok(())
}

/// A client as `CLIENT LIST` shows it.
fn line(client: &Client, now: u64, commands: &[Command]) -> String {
    let words = client.words().clone();
    let queued = client.queued.load(Relaxed);
    let command = commands.get(client.command.load(Relaxed) as usize);
    format!(
        "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} db={} sub=0 psub=0 ssub=0 \
         multi={} watch={} qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 \
         omem=0 tot-mem={} events=r cmd={} user=default redir=-1 resp={} lib-name={} lib-ver={}\n",
        client.id,
        client.peer,
        client.local,
        client.descriptor,
        words.name,
        now.saturating_sub(client.since_ms) / 1000,
        now.saturating_sub(client.last_ms.load(Relaxed)) / 1000,
        if queued > 0 { "x" } else { "N" },
        client.database.load(Relaxed),
        i64::from(queued) - 1,
        client.watched.load(Relaxed),
        client.bytes.load(Relaxed),
        command.map_or("NULL", |command| command.name),
        client.version.load(Relaxed),
        words.library,
        words.library_version,
    )
}

fn list(call: &mut Call<'_>) -> Done {
    let (mut only, mut shows) = (None, true);
    if call.len() > 3 && call.is(2, "id") {
        let ids: Option<Vec<_>> = call.arguments.from(3).map(decimal).collect();
        only = Some(ids.ok_or(Wrong::Is("ERR Invalid client ID"))?);
    } else if call.len() == 4 && call.is(2, "type") {
        shows = is_normal(call.at(3))?;
    } else if call.len() != 2 {
        return Err(SYNTAX);
    }
    let mut text = String::new();
    for client in call.turn.server.clients.list() {
        let is_asked = only.as_ref().is_none_or(|ids| ids.contains(&(client.id as i64)));
        if shows && client.way == Way::Redis && is_asked {
            text.push_str(&line(&client, call.turn.now, call.commands));
        }
        if !call.reply.has_room(text.len()) {
            return call.overflow();
        }
    }
    call.reply.verbatim(&text);
    Ok(())
}

/// Does this word name the type of the clients that there are here? Nobody is of the others.
fn is_normal(word: &[u8]) -> Result<bool, Wrong> {
    let types: [&[u8]; 5] = [b"normal", b"master", b"slave", b"replica", b"pubsub"];
    let named = types.iter().position(|name| word.eq_ignore_ascii_case(name));
    let word = String::from_utf8_lossy(word);
    let unknown = || Wrong::says(format!("ERR Unknown client type '{word}'"));
    named.map(|at| at == 0).ok_or_else(unknown)
}

/// Which connections `CLIENT KILL` ends.
#[derive(Default)]
struct Victims {
    id: Option<i64>,
    peer: Option<String>,
    local: Option<String>,
    older_s: Option<i64>,
    spares_me: bool,
    /// A type was asked for of which nobody is.
    spares_all: bool,
}

impl Victims {
    fn read(call: &Call<'_>) -> Result<Victims, Wrong> {
        let mut victims = Victims { spares_me: true, ..Victims::default() };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut index = 2;
        while index < call.len() {
            let option = call.at(index).to_ascii_lowercase();
            let value = call.after(&mut index)?;
            match option.as_slice() {
                b"id" => {
                    let id = decimal(value).filter(|id| *id > 0);
                    victims.id =
                        Some(id.ok_or(Wrong::Is("ERR client-id should be greater than 0"))?);
                }
                b"addr" => victims.peer = Some(text(value)),
                b"laddr" => victims.local = Some(text(value)),
                b"type" => victims.spares_all |= !is_normal(value)?,
                b"user" if value == b"default" => {}
                b"user" => {
                    let user = String::from_utf8_lossy(value);
                    return Err(Wrong::says(format!("ERR No such user '{user}'")));
                }
                b"maxage" => victims.older_s = Some(decimal(value).ok_or(NOT_INTEGER)?),
                b"skipme" if value.eq_ignore_ascii_case(b"yes") => victims.spares_me = true,
                b"skipme" if value.eq_ignore_ascii_case(b"no") => victims.spares_me = false,
                _ => return Err(SYNTAX),
            }
            index += 1;
        }
        Ok(victims)
    }

    fn hold(&self, client: &Client, me: u64, now: u64) -> bool {
        let age_s = (now.saturating_sub(client.since_ms) / 1000) as i64;
        !(self.spares_all || self.spares_me && client.id == me)
            && self.id.is_none_or(|id| id == client.id as i64)
            && self.peer.as_ref().is_none_or(|peer| *peer == client.peer)
            && self.local.as_ref().is_none_or(|local| *local == client.local)
            && self.older_s.is_none_or(|least| age_s >= least)
    }
}

fn kill(call: &mut Call<'_>) -> Done {
    let is_old_form = call.len() == 3;
    let victims = if is_old_form {
        let peer = Some(String::from_utf8_lossy(call.at(2)).into_owned());
        Victims { peer, ..Victims::default() }
    } else {
        Victims::read(call)?
    };
    let (me, mut killed) = (call.state.client.id, 0);
    for client in call.turn.server.clients.list() {
        if client.way == Way::Redis && victims.hold(&client, me, call.turn.now) {
            client.kill.store(true, Relaxed);
            call.state.is_closing |= client.id == me;
            killed += 1;
        }
    }
    if !is_old_form {
        call.reply.integer(killed);
    } else if killed == 0 {
        return Err(Wrong::Is("ERR No such client"));
    } else {
        call.reply.ok();
    }
    Ok(())
}
