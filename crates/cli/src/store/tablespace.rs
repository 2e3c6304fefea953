//! Tablespaces: made, dropped, listed and flushed while the store serves.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use remora_command::seconds::seconds;
use remora_store::client::StoreClient;
use remora_store::codec::Codec;
use remora_store::tablespace::{Eviction, TablespaceOptions};
use remora_store::way::connect::ClientOptions;
use remora_store::way::info::SpaceInfo;
use serde_json::{Value, json};

use super::{StoreAddress, quota, turn_to};
use crate::output;

/// `remora store tablespace`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora store tablespace 127.0.0.2 create orders --quota 1G --codec lz4
  remora store tablespace 127.0.0.2 create sessions --evict --expire 3600
  remora store tablespace 127.0.0.2 list
  remora store tablespace 127.0.0.2 drop orders")]
pub(super) struct Tablespace {
    #[command(flatten)]
    store: StoreAddress,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make one
    Create(Create),
    /// Drop one with all its keys
    Drop {
        /// Its name
        name: String,
    },
    /// List all
    List {
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove all keys of one
    Flush {
        /// Its name
        name: String,
    },
}

#[derive(Debug, Args)]
struct Create {
    /// Its name
    name: String,
    /// The most bytes that it may have [default: what the store has]
    #[arg(long, value_name = "SIZE", value_parser = quota)]
    quota: Option<u64>,
    /// Where memory is short, let go what has not been used for some time
    #[arg(long)]
    evict: bool,
    /// Seconds after which its keys expire, unless they say otherwise
    #[arg(long, value_name = "SECONDS", value_parser = time_to_live)]
    expire: Option<u64>,
    /// How its values are stored
    #[arg(long, value_name = "CODEC", value_enum, default_value_t = Stored::Plain)]
    codec: Stored,
    /// Bytes at the beginning of values that stay plain: those of the columns that predicates
    /// look at
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    plain: u16,
}

/// How values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Stored {
    /// As they are
    #[value(alias = "none")]
    Plain,
    /// As LZ4: quick to decompress
    Lz4,
    /// As zstd: smaller and slower, for archives; a feature of the program that serves
    Zstd,
}

impl Stored {
    /// The codec that leaves the first `head` bytes plain.
    pub(super) fn codec(self, head: u16) -> Codec {
        match self {
            Stored::Plain => Codec::None,
            Stored::Lz4 => Codec::Lz4 { head },
            Stored::Zstd => Codec::Zstd { head },
        }
    }
}

impl Create {
    fn options(&self) -> TablespaceOptions {
        TablespaceOptions {
            name: self.name.clone(),
            quota: self.quota,
            eviction: if self.evict { Eviction::Clock } else { Eviction::Never },
            default_expiry_ms: self.expire,
            codec: self.codec.codec(self.plain),
        }
    }
}

/// Parses seconds; in milliseconds.
fn time_to_live(text: &str) -> Result<u64, String> {
    let ms = u64::try_from(seconds(text)?.as_millis()).ok();
    ms.filter(|ms| *ms > 0).ok_or_else(|| format!("`{text}` is no time to live"))
}

impl Tablespace {
    pub(super) fn run(self) -> Result<ExitCode> {
        self.store.with(&ClientOptions::default(), |client| match &self.what {
            What::Create(create) => {
                let made = client.create_tablespace(&create.options())?;
                println!("{} is tablespace {}", create.name, made.0);
                Ok(())
            }
            What::Drop { name } => {
                turn_to(client, name)?;
                Ok(client.drop_tablespace()?)
            }
            What::Flush { name } => {
                turn_to(client, name)?;
                Ok(client.flush()?)
            }
            What::List { json } => list(client, *json),
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

fn list(client: &mut StoreClient, json: bool) -> Result<()> {
    let all = client.tablespaces()?;
    if json {
        return output::json_line(&all.iter().map(to_json).collect::<Vec<_>>());
    }
    println!("{}", table(&all));
    Ok(())
}

/// A tablespace as JSON.
pub(super) fn to_json((info, classes): &SpaceInfo) -> Value {
    let options = &info.options;
    let classes = classes.iter();
    json!({
        "name": options.name,
        "number": info.id.0,
        "keys": info.items,
        "bytes": info.bytes,
        "quota": options.quota,
        "evicts": options.eviction == Eviction::Clock,
        "default_expiry_ms": options.default_expiry_ms,
        "codec": codec(options.codec),
        "classes": classes
            .map(|c| json!({ "bytes": c.size, "used": c.used, "blocks": c.blocks }))
            .collect::<Vec<_>>(),
    })
}

/// All tablespaces as a table.
pub(super) fn table(all: &[SpaceInfo]) -> comfy_table::Table {
    let headings = ["tablespace", "number", "keys", "bytes", "quota", "when full", "lives", "as"];
    let mut table = output::table(headings);
    for (info, _) in all {
        let options = &info.options;
        let evicts = options.eviction == Eviction::Clock;
        let lives = options.default_expiry_ms.map(|ms| format!("{:?}", Duration::from_millis(ms)));
        table.add_row([
            remora::printable(&options.name).to_string(),
            info.id.0.to_string(),
            output::grouped(info.items),
            output::bytes(info.bytes),
            options.quota.map_or_else(|| "–".to_owned(), output::bytes),
            if evicts { "evicts" } else { "refuses" }.to_owned(),
            lives.unwrap_or_else(|| "for ever".to_owned()),
            codec(options.codec),
        ]);
    }
    output::align_right(&mut table, 1..5);
    table
}

fn codec(codec: Codec) -> String {
    match codec {
        Codec::None => "plain".to_owned(),
        Codec::Lz4 { head: 0 } => "lz4".to_owned(),
        Codec::Lz4 { head } => format!("lz4 behind {head} B"),
        Codec::Zstd { head: 0 } => "zstd".to_owned(),
        Codec::Zstd { head } => format!("zstd behind {head} B"),
    }
}
