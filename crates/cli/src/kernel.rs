//! `remora kernel`: loads kernels into a node's card while it runs, lists, calls and unloads them.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, value_parser};
use remora::connection::token::Token;
use remora::kernel::builtin::Kind;
use remora::kernel::{CallFailure, CallStatus, ModuleLimits};
use remora::nic::Access;
use remora_command::node::KERNELS_DOCUMENT;
use remora_command::node::address::{NodeAddress, RegionAddress};
use remora_command::node::client::RemoteRegion;
use remora_command::node::kernel_permit;
use remora_command::node::kernels::{self, GrantRow, KernelRow, Request, TapRow, manage};
use remora_command::size::{parse_size, size_in};
use serde::Serialize;
use serde_json::json;

use crate::output;
use crate::remote::RemoteArgs;
use crate::sink::Sink;

/// `remora kernel`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora kernel load 127.0.0.2 lines.wasm --opcode 0x100
  remora kernel load 127.0.0.2 get.wasm --opcode 0x101 --grant table --grant values
  remora kernel load 127.0.0.2 --builtin get --grant table --grant values
  remora kernel load 127.0.0.2 sum.wasm --opcode 0x102 --tap stream --grant notes,rw
  remora kernel call 127.0.0.2 --opcode 0x100 --text ERROR --payload server.log
  remora kernel list 127.0.0.2

Kernels are written with the libraries in guest/rust, guest/c and guest/assemblyscript;
docs/kernels.md says how.")]
pub(crate) struct Kernel {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Load a WebAssembly module as a kernel, or serve one that is built in
    Load(Load),
    /// List the kernels of a node
    List(List),
    /// Unload a kernel: its calls in flight end, and later ones are refused
    Unload(Unload),
    /// Call a kernel; its result goes to standard output
    Call(Call),
}

impl Kernel {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let succeeded = |()| ExitCode::SUCCESS;
        match self.what {
            What::Load(command) => command.run().map(succeeded),
            What::List(command) => command.run().map(succeeded),
            What::Unload(command) => command.run().map(succeeded),
            What::Call(command) => command.run(),
        }
    }
}

/// Parses an op-code: decimal, or hexadecimal after `0x`.
fn parse_opcode(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("`{text}` is no op-code: write it as in 256 or 0x100"))
}

/// The node, and how to reach it.
#[derive(Debug, Args)]
struct NodeArgs {
    /// The node: HOST or HOST:PORT
    node: NodeAddress,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: RemoteArgs,
}

impl NodeArgs {
    /// Calls `act` with a connection to the node's region of kernels.
    fn with<R>(&self, act: impl FnOnce(RemoteRegion) -> Result<R>) -> Result<R> {
        let device = self.remote.open(self.node)?;
        let address = RegionAddress { node: self.node, name: KERNELS_DOCUMENT.into() };
        let result = act(self.remote.connect(&device, &address)?)?;
        self.remote.device.finish(&device);
        Ok(result)
    }

    /// Prints a result: as JSON, or in words.
    fn say<T: Serialize>(&self, what: &T, words: impl FnOnce(&T) -> String) -> Result<()> {
        if self.json {
            return output::json_line(what);
        }
        println!("{}", words(what));
        Ok(())
    }
}

/// The permission to load kernels.
#[derive(Debug, Args)]
struct PermitArgs {
    /// The node's token for loading kernels [default: the one that a node of this
    /// user on this machine has left in a file]
    #[arg(long, env = "REMORA_KERNEL_TOKEN", hide_env_values = true)]
    kernel_token: Option<Token>,
}

impl PermitArgs {
    fn token(&self, node: &NodeAddress) -> Result<Option<Token>> {
        match self.kernel_token {
            Some(token) => Ok(Some(token)),
            None => kernel_permit::find(node).context("cannot use the node's permit for this user"),
        }
    }
}

#[derive(Debug, Args)]
struct Load {
    #[command(flatten)]
    node: NodeArgs,
    /// The module
    #[arg(required_unless_present = "builtin", conflicts_with = "builtin")]
    file: Option<PathBuf>,
    /// Serve a built-in kernel instead of a module
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(kernels::served()))]
    builtin: Option<String>,
    /// The op-code to call it by, as in 256 or 0x100 [default: a built-in kernel's own]
    #[arg(long, required_unless_present = "builtin", value_parser = parse_opcode)]
    opcode: Option<u64>,
    /// A name for people [default: the file's]
    #[arg(long)]
    name: Option<String>,
    /// Steps that an invocation may take: a memory access is one step, and one more for each 64
    /// bytes; 64 instructions are one [default: 1000000; no limit for built-in kernels that take
    /// streams]
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    budget: Option<u64>,
    /// Memory that an instance may have, at most 16M
    #[arg(long, default_value = "4M", value_parser = size_in(0..=ModuleLimits::MEMORY_MAX as u64))]
    memory: u64,
    /// A region of the node that the kernel may read, and with ,rw write; may be given several
    /// times
    #[arg(long = "grant", value_name = "REGION[,rw]")]
    grants: Vec<String>,
    /// A region whose WRITEs pass through the kernel on their way to memory
    #[arg(long, value_name = "REGION")]
    tap: Option<String>,
    /// Replace the kernel that has the op-code, without a gap
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    permit: PermitArgs,
}

impl Load {
    fn run(self) -> Result<()> {
        let permit = self.permit.token(&self.node.node)?;
        let (request, module) = self.request()?;
        let row = self.node.with(|region| {
            manage(&region, permit, &Request::Load(request), &module)
                .with_context(|| format!("{} is not loaded", self.what()))
        })?;
        self.node.say(&row, |row| {
            let tap = row.tap.as_ref();
            let tap = tap.map_or(String::new(), |tap| format!(", bound to {}", tap.region));
            let node = self.node.node;
            format!("Loaded {} as op-code {:#x} at {node}{tap}.", row.name, row.opcode)
        })
    }

    /// The name of the kernel, for messages.
    fn what(&self) -> String {
        match (&self.builtin, &self.file) {
            (Some(name), _) => format!("the built-in kernel {name}"),
            (None, file) => file.as_deref().unwrap_or(Path::new("")).display().to_string(),
        }
    }

    /// The request, and the module that goes with it.
    fn request(&self) -> Result<(kernels::Load, Vec<u8>)> {
        let kind = self.builtin.as_deref().and_then(Kind::named);
        let module = match &self.file {
            Some(file) => fs::read(file).with_context(|| format!("cannot read {}", self.what()))?,
            None => Vec::new(),
        };
        let stem = self.file.as_deref().and_then(Path::file_stem).unwrap_or_default();
        let own = || kind.map_or(stem.to_string_lossy().into(), |kind| kind.name().to_owned());
        let grants = self.grants.iter().map(|grant| match grant.strip_suffix(",rw") {
            Some(region) => (region.to_owned(), true),
            None => (grant.clone(), false),
        });
        let request = kernels::Load {
            opcode: self.opcode.or(kind.map(Kind::opcode)).context("--opcode is missing")?,
            name: self.name.clone().unwrap_or_else(own),
            budget: self.budget.unwrap_or(kind.map_or(1_000_000, Kind::budget)),
            memory: self.memory,
            replace: self.replace,
            grants: grants.collect(),
            builtin: self.builtin.clone(),
            tap: self.tap.clone(),
        };
        Ok((request, module))
    }
}

#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    node: NodeArgs,
}

impl List {
    fn run(self) -> Result<()> {
        let kernels: Vec<KernelRow> = self.node.with(|region| Ok(region.read_document()?))?;
        self.node.say(&kernels, |kernels| table(kernels).to_string())
    }
}

fn table(kernels: &[KernelRow]) -> comfy_table::Table {
    let headings = [
        "op-code",
        "kernel",
        "calls",
        "failed",
        "running",
        "steps ≤",
        "memory ≤",
        "may use",
        "bound to",
    ];
    let mut table = output::table(headings);
    let unlimited =
        |steps: u64| if steps == u64::MAX { "any".into() } else { output::grouped(steps) };
    for kernel in kernels {
        table.add_row([
            format!("{:#x}", kernel.opcode),
            kernel.name.clone(),
            output::grouped(kernel.calls),
            output::grouped(kernel.failed),
            kernel.running.to_string(),
            unlimited(kernel.budget),
            if kernel.memory == 0 { "built in".into() } else { output::bytes(kernel.memory) },
            kernel.grants.iter().map(describe).collect::<Vec<_>>().join("\n"),
            kernel.tap.as_ref().map_or(String::new(), describe_tap),
        ]);
    }
    output::align_right(&mut table, [0, 2, 3, 4, 5, 6]);
    table
}

fn describe(grant: &GrantRow) -> String {
    let rw = if grant.writable { ",rw" } else { "" };
    format!("{}{rw} at {:#x}", grant.region, grant.addr)
}

fn describe_tap(tap: &TapRow) -> String {
    let seen = format!("{}: {}", tap.region, output::counted(tap.payloads, "payload"));
    match &tap.stopped {
        Some(why) => format!("{seen}\nstopped: {why}"),
        None => seen,
    }
}

#[derive(Debug, Args)]
struct Unload {
    #[command(flatten)]
    node: NodeArgs,
    /// The kernel's op-code, as in 256 or 0x100
    #[arg(long, value_parser = parse_opcode)]
    opcode: u64,
    #[command(flatten)]
    permit: PermitArgs,
}

impl Unload {
    fn run(self) -> Result<()> {
        let permit = self.permit.token(&self.node.node)?;
        let request = Request::Unload { opcode: self.opcode };
        let row = self.node.with(|region| Ok(manage(&region, permit, &request, &[])?))?;
        self.node.say(&row, |row| {
            let node = self.node.node;
            format!("Unloaded {}, op-code {:#x}, from {node}.", row.name, row.opcode)
        })
    }
}

#[derive(Debug, Args)]
struct Call {
    #[command(flatten)]
    node: NodeArgs,
    /// The kernel's op-code, as in 256 or 0x100
    #[arg(long, value_parser = parse_opcode)]
    opcode: u64,
    /// Parameters, as hexadecimal digits
    #[arg(long, value_name = "HEX", conflicts_with = "text", value_parser = parse_hex)]
    params: Option<Bytes>,
    /// Parameters, as text
    #[arg(long)]
    text: Option<String>,
    /// Payload to stream through the kernel; - is standard input
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
    /// Room for the result; K, M, G are powers of 1024
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = parse_size)]
    room: u64,
    /// Seconds to wait for the result
    #[arg(long, default_value_t = 10)]
    patience: u64,
    /// Where to put the result; - is standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    out: PathBuf,
}

/// Bytes given as hexadecimal digits.
#[derive(Clone, Debug)]
struct Bytes(Vec<u8>);

fn parse_hex(text: &str) -> Result<Bytes, String> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    match digits.filter(|digits| digits.len().is_multiple_of(2)) {
        Some(digits) => Ok(Bytes(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())),
        None => Err("write pairs of hexadecimal digits, as in 00ff17".to_owned()),
    }
}

impl Call {
    fn run(self) -> Result<ExitCode> {
        let params = match (&self.params, &self.text) {
            (Some(Bytes(bytes)), _) => bytes.clone(),
            (None, text) => text.clone().unwrap_or_default().into_bytes(),
        };
        let payload = self.payload.as_deref().map(read_payload).transpose()?;
        let room = usize::try_from(self.room).context("--room is too large for this machine")?;
        let mut result = Vec::new();
        let status = self.node.with(|region| {
            let mut client = region.kernels(room)?;
            client.timeout = Duration::from_secs(self.patience);
            let called = match &payload {
                None => client.call(self.opcode, &params, &mut result),
                Some(bytes) => {
                    let memory = region.pd().alloc(bytes.len().max(1), Access::LOCAL_WRITE)?;
                    memory.write_at(0, bytes)?;
                    let sge = memory.sge(0, u32::try_from(bytes.len()).context("the payload")?);
                    client.call_with(self.opcode, &params, sge, &mut result)
                }
            };
            match called {
                Ok(_) => Ok(CallStatus::OK),
                Err(CallFailure::Status(status)) => Ok(status),
                Err(error) => Err(error.into()),
            }
        })?;
        self.tell(status, &result)?;
        Ok(if status == CallStatus::OK { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn tell(&self, status: CallStatus, result: &[u8]) -> Result<()> {
        if self.node.json {
            let hex: String = result.iter().map(|byte| format!("{byte:02x}")).collect();
            let (code, text) = (status.0, status.text());
            output::json_line(
                &json!({ "status": code, "meaning": text, "bytes": result.len(), "result": hex }),
            )?;
        } else if status != CallStatus::OK {
            eprintln!("remora: the call of op-code {:#x} failed: {status}", self.opcode);
        }
        let has_place = !self.node.json || self.out != Path::new("-");
        if status == CallStatus::OK && has_place {
            let mut sink = Sink::create(&self.out)?;
            sink.write_all(result)?;
            sink.finish()?;
        }
        Ok(())
    }
}

/// The longest payload of a call.
const PAYLOAD_MAX: u64 = 1 << 30;

fn read_payload(path: &Path) -> Result<Vec<u8>> {
    let unreadable = || format!("cannot read {}", path.display());
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).with_context(unreadable)?)
    };
    let mut bytes = Vec::new();
    source.take(PAYLOAD_MAX + 1).read_to_end(&mut bytes).with_context(unreadable)?;
    let longer = bytes.len() as u64 > PAYLOAD_MAX;
    ensure!(!longer, "{} is longer than {PAYLOAD_MAX} bytes", path.display());
    Ok(bytes)
}
