//! The store: a row for each file of this machine, loaded by kernels. One row is read in five ways,
//! rows are selected next to the data, and the store is killed and started again.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use remora::{Device, wait_for};
use remora_store::client::{About, AsyncStoreClient, StoreClient, StoreError};
use remora_store::select::Predicate;
use remora_store::select::plan::Plan;
use remora_store::select::schema::Schema;
use remora_store::select::selection::{Output, Selection};
use remora_store::way::connect::ClientOptions;
use serde::Serialize;

use super::data;
use super::figures::Latency;
use super::served::Ready;
use remora_command::child::Helper;
use remora_command::flight::{self, Item};
use remora_command::folder::Folder;
use remora_command::output;

/// The number of files that have a row.
const FILES: usize = 10_000;
/// Puts that are under way at once: a write to the disk is for all of them.
const IN_FLIGHT: usize = 64;
/// The reads that are measured, of each way, and the scans.
const SAMPLES: usize = 1000;
const SCANS: usize = 5;
/// The columns of a row.
const SCHEMA: &str = "size u64\nchanged date\npath text";
/// Which rows are selected.
const WHERE: &str = "size > 1000000 and path like '%lib%'";
/// How long the store may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// Rows by key.
type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) rows: usize,
    load_seconds: f64,
    pub(super) ways: Vec<Way>,
    selected: usize,
    selected_bytes: usize,
    all_bytes: usize,
    select_there: Latency,
    select_here: Latency,
    recovery_seconds: f64,
}

/// A way in which a row was read.
#[derive(Debug, Serialize)]
pub(super) struct Way {
    way: &'static str,
    answers: &'static str,
    get: Latency,
}

/// Loads, reads, selects, kills; checks every row. Tells `say` of each step, whose first number is
/// `step`.
pub(super) fn run(step: usize, say: impl Fn(&str)) -> Result<Measured> {
    let folder = Folder::new("demo-store")?;
    let rows = rows()?;
    let (served, ready) = start(folder.path())?;
    let device = Device::open()?;
    let load_seconds = load(&device, &ready, &rows)?;
    let count = output::grouped(rows.len() as u64);
    say(&format!(
        "{step}. A key-value store, process {}. A row for each of {count} files of this machine \
         was put by\n   kernels on its card in {load_seconds:.2} s, and was on the disk before the \
         store acknowledged it.",
        served.id()
    ));
    let options = ClientOptions::default();
    let mut client = StoreClient::connect(&device, ready.store, &options)?;
    let ways = read_in_five_ways(&mut client, &ready, &rows)?;
    say(&format!(
        "{}. One row was read in five ways, {} times each: all bytes are right.",
        step + 1,
        output::grouped(SAMPLES as u64)
    ));
    let mut measured = select(&mut client, &rows)?;
    (measured.load_seconds, measured.ways) = (load_seconds, ways);
    say(&format!(
        "{}. {WHERE}: {} rows. Selected next to the data, they came in\n   {:.2} ms ({}); fetching \
         all rows and selecting here took {:.2} ms ({}).",
        step + 2,
        output::grouped(measured.selected as u64),
        measured.select_there.median_us / 1000.0,
        output::bytes(measured.selected_bytes as u64),
        measured.select_here.median_us / 1000.0,
        output::bytes(measured.all_bytes as u64),
    ));
    drop(client);
    // This sends SIGKILL: the store cannot put anything in order.
    drop(served);
    let began = Instant::now();
    let (served, ready) = start(folder.path())?;
    let mut client = StoreClient::connect(&device, ready.store, &options)?;
    measured.recovery_seconds = began.elapsed().as_secs_f64();
    ensure!(all_rows(&mut client)? == rows, "the rows are others than before the store was killed");
    say(&format!(
        "{}. The store was killed (kill -9) and started again, as process {}: {:.2} s later it \
         served all\n   {count} rows.\n",
        step + 3,
        served.id(),
        measured.recovery_seconds
    ));
    Ok(measured)
}

/// A row for each of some files: size, day of the last change, path.
fn rows() -> Result<Rows> {
    let mut rows = Rows::new();
    for path in data::files(FILES)? {
        // A file that goes meanwhile has no row, nor has one whose name is no text.
        let (Ok(about), Some(name)) = (fs::symlink_metadata(&path), path.to_str()) else {
            continue;
        };
        let days = i32::try_from(about.mtime().div_euclid(86_400)).unwrap_or(0);
        let row = [&about.len().to_le_bytes()[..], &days.to_le_bytes(), name.as_bytes()].concat();
        rows.insert(path.as_os_str().as_bytes().to_vec(), row);
    }
    Ok(rows)
}

fn schema() -> Result<Schema> {
    Schema::parse(SCHEMA).map_err(|mistake| anyhow::anyhow!(mistake.render("schema", SCHEMA)))
}

fn start(folder: &Path) -> Result<(Helper, Ready)> {
    let folder = folder.to_str().context("the folder's name is not UTF-8")?;
    let mut served = Helper::start(["demo-store", "--dir", folder])?;
    let line = served.line().context("the store did not start")?;
    let ready = serde_json::from_str(&line).context("cannot understand the store's first line")?;
    Ok((served, ready))
}

/// Puts all rows; returns how many seconds that took.
fn load(device: &Device, ready: &Ready, rows: &Rows) -> Result<f64> {
    let options = ClientOptions { calls: IN_FLIGHT, piece: 64, ..ClientOptions::default() };
    let connecting = AsyncStoreClient::connect(device, ready.store, &options);
    let client = wait_for(connecting, PATIENCE).context("the store does not answer")??;
    let (began, mut left) = (Instant::now(), rows.iter());
    let next = |_| {
        let item = left.next().map(|(key, row)| (key.clone(), row.clone()));
        Ok(item.map(|(key, value)| Item { key, value, ..Item::default() }))
    };
    let put = flight::put_all(&client, IN_FLIGHT, next)?;
    ensure!(put == rows.len() as u64, "{put} of {} rows were put", rows.len());
    Ok(began.elapsed().as_secs_f64())
}

/// Reads one row in all ways, and compares its bytes.
fn read_in_five_ways(client: &mut StoreClient, ready: &Ready, rows: &Rows) -> Result<Vec<Way>> {
    // memcached's keys have at most 250 bytes, and none that is blank.
    let usual = |key: &[u8]| key.len() <= 250 && key.iter().all(u8::is_ascii_graphic);
    let row = rows.iter().skip(rows.len() / 2).chain(rows).find(|(key, _)| usual(key));
    let (key, row) = row.context("no file has a name that every protocol can carry")?;
    type Get = fn(&mut StoreClient, &[u8], &mut Vec<u8>) -> Result<Option<About>, StoreError>;
    let by_card: [(&str, &str, Get); 3] = [
        ("a kernel", "code on the store's card", StoreClient::get),
        ("one-sided READs", "the card alone", StoreClient::get_one_sided),
        ("a chain", "work requests on the card", StoreClient::get_by_chain),
    ];
    let mut ways = Vec::new();
    for (way, answers, get) in by_card {
        let mut value = Vec::new();
        let measured = measure(|| {
            value.clear();
            get(client, key, &mut value)?;
            ensure!(value == *row, "{way}: wrong bytes of {}", String::from_utf8_lossy(key));
            Ok(())
        })?;
        ways.push(Way { way, answers, get: measured });
    }
    let (len, key, row) = (row.len(), String::from_utf8_lossy(key), row.as_slice());
    let redis = format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
    let redis_answer = [format!("${len}\r\n").as_bytes(), row, b"\r\n"].concat();
    let memcached = format!("get {key}\r\n");
    let head = format!("VALUE {key} 0 {len}\r\n");
    let memcached_answer = [head.as_bytes(), row, b"\r\nEND\r\n"].concat();
    for (way, at, request, answer) in [
        ("Redis' protocol, TCP", &ready.redis, redis, redis_answer),
        ("memcached's protocol, TCP", &ready.memcached, memcached, memcached_answer),
    ] {
        let at = at.first().with_context(|| format!("the store does not serve {way}"))?;
        let mut stream = TcpStream::connect(at).with_context(|| format!("no connection: {way}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let measured = measure(|| ask(&mut stream, request.as_bytes(), &answer).context(way))?;
        ways.push(Way { way, answers: "a thread of its process", get: measured });
    }
    Ok(ways)
}

fn measure(mut get: impl FnMut() -> Result<()>) -> Result<Latency> {
    // The first ones connect, and learn where the row is.
    (0..SAMPLES / 10).try_for_each(|_| get())?;
    let mut samples = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let began = Instant::now();
        get()?;
        samples.push(began.elapsed());
    }
    Ok(Latency::of(samples))
}

/// Sends a request and waits for the answer; this end polls, as the client of the card does.
fn ask(stream: &mut TcpStream, request: &[u8], expected: &[u8]) -> Result<()> {
    stream.write_all(request)?;
    let (mut answer, mut filled, began) = (vec![0; expected.len()], 0, Instant::now());
    while filled < answer.len() {
        match stream.read(&mut answer[filled..]) {
            Ok(0) => bail!("the store has ended the connection"),
            Ok(len) => filled += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                ensure!(began.elapsed() < PATIENCE, "the store does not answer");
            }
            Err(error) => return Err(error.into()),
        }
    }
    ensure!(answer == expected, "the answer is not the row");
    Ok(())
}

/// Selects rows next to the data, and, beside it, by fetching all of them.
fn select(client: &mut StoreClient, rows: &Rows) -> Result<Measured> {
    let schema = schema()?;
    let told = |mistake: remora_store::select::mistake::Mistake| {
        anyhow::anyhow!(mistake.render("where", WHERE))
    };
    let predicate = Predicate::parse(WHERE).map_err(told)?;
    let condition = predicate.bind(&schema, &[]).map_err(told)?;
    let (row_least, limit) = (schema.fixed(), u64::MAX);
    let selection = Selection { row_least, condition, output: Output::Whole, limit };
    let plan = Plan::new(&selection)?;
    let expected: Rows = rows
        .iter()
        .filter(|(_, row)| plan.is_match(row))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    let (mut there, mut here) = (Vec::new(), Vec::new());
    for _ in 0..SCANS {
        let (began, mut selected) = (Instant::now(), Rows::new());
        client.scan(Some(&selection), |key, row| {
            selected.insert(key.to_vec(), row.to_vec());
        })?;
        there.push(began.elapsed());
        ensure!(selected == expected, "the store has selected other rows than it should");
        let (began, mut selected) = (Instant::now(), Rows::new());
        client.scan(None, |key, row| {
            if plan.is_match(row) {
                selected.insert(key.to_vec(), row.to_vec());
            }
        })?;
        here.push(began.elapsed());
        ensure!(selected == expected, "selecting here has found other rows than it should");
    }
    let bytes = |rows: &Rows| rows.iter().map(|(key, row)| key.len() + row.len()).sum();
    Ok(Measured {
        rows: rows.len(),
        load_seconds: 0.0,
        ways: Vec::new(),
        selected: expected.len(),
        selected_bytes: bytes(&expected),
        all_bytes: bytes(rows),
        select_there: Latency::of(there),
        select_here: Latency::of(here),
        recovery_seconds: 0.0,
    })
}

fn all_rows(client: &mut StoreClient) -> Result<Rows> {
    let mut rows = Rows::new();
    client.scan(None, |key, row| {
        rows.insert(key.to_vec(), row.to_vec());
    })?;
    Ok(rows)
}

/// Prints the five ways as a table.
pub(super) fn show(measured: &Measured) {
    let mut table = output::table(["a row of the store, read by", "time", "what answers"]);
    for Way { way, answers, get } in &measured.ways {
        let time = format!("{:.1} µs (p99 {:.1})", get.median_us, get.p99_us);
        table.add_row([(*way).to_owned(), time, (*answers).to_owned()]);
    }
    output::align_right(&mut table, [1]);
    println!("{table}");
}
