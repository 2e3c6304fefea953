//! The structs and constants in `src/abi` are those of the distribution's header, as its C compiler
//! lays them out.

#[path = "../../remora/tests/support/skips.rs"]
mod skips;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::{env, fs};

use remora_verbs::abi::{CONSTANTS, LAYOUTS, Layout};

/// The headers that the C program includes.
const HEADERS: &[&str] = &[
    "stddef.h",
    "stdio.h",
    "infiniband/verbs.h",
    "infiniband/sa.h",
    "rdma/ib_user_sa.h",
    "rdma/ib_user_verbs.h",
    "rdma/rdma_cma.h",
    "rdma/rsocket.h",
];

/// A line that the program prints, and the value that the tables expect.
fn expectations() -> Vec<(String, i64)> {
    let mut all = Vec::new();
    for layout in LAYOUTS.iter().copied().flatten() {
        describe(layout, &mut all);
    }
    for (name, value) in CONSTANTS.iter().copied().flatten() {
        all.push((format!("(long long)({name})"), *value));
    }
    all
}

/// C expressions for the size of a struct, and the place and size of each of its fields.
fn describe(layout: &Layout, all: &mut Vec<(String, i64)>) {
    let int = |n: usize| i64::try_from(n).expect("no struct is that large");
    let (outer, path) = match layout.part_of {
        Some((outer, path)) => (outer, path),
        None => (layout.name, ""),
    };
    let outer = format!("{} {outer}", kind_of(outer));
    // An anonymous part has no path, so C cannot name it to measure it.
    let base = match path {
        "" if layout.part_of.is_some() => return,
        "" => {
            all.push((format!("sizeof({outer})"), int(layout.size)));
            String::new()
        }
        path => {
            all.push((format!("sizeof((({outer} *)0)->{path})"), int(layout.size)));
            format!("{path}.")
        }
    };
    for (field, offset, size) in layout.fields {
        let start = match path {
            "" => "0".to_owned(),
            path => format!("offsetof({outer}, {path})"),
        };
        all.push((format!("offsetof({outer}, {base}{field}) - {start}"), int(*offset)));
        // The size of an anonymous union's first member is not that of the union.
        if layout.fields.len() == 1 || !ANONYMOUS.contains(field) {
            all.push((format!("sizeof((({outer} *)0)->{base}{field})"), int(*size)));
        }
    }
}

/// Members of anonymous unions that stand for the union in the tables.
const ANONYMOUS: &[&str] = &["imm_data", "bind_mw"];

/// Is `name` a struct or a union?
fn kind_of(name: &str) -> &'static str {
    let mut layouts = LAYOUTS.iter().copied().flatten();
    layouts.find(|layout| layout.name == name).map_or("struct", |layout| layout.kind)
}

#[test]
fn layouts_are_the_headers() {
    if !fs::exists("/usr/include/infiniband/verbs.h").unwrap_or(false) {
        skips::has_not("the header infiniband/verbs.h is not there");
        return;
    }
    let expected = expectations();
    let mut source = String::new();
    for header in HEADERS {
        writeln!(source, "#include <{header}>").unwrap();
    }
    source.push_str("int main(void) {\n");
    for (expression, _) in &expected {
        writeln!(source, "  printf(\"%lld\\n\", (long long)({expression}));").unwrap();
    }
    source.push_str("}\n");
    let program = env::temp_dir().join(format!("remora-layout-{}", std::process::id()));
    let mut cc = Command::new("cc")
        .args(["-x", "c", "-w", "-O0", "-o"])
        .arg(&program)
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler");
    cc.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(cc.wait().unwrap().success(), "the header lacks something that the tables define");
    let output = Command::new(&program).output().unwrap();
    fs::remove_file(&program).unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let wrong: Vec<String> = expected
        .iter()
        .zip(lines.lines())
        .filter(|((_, ours), line)| line.parse() != Ok(*ours))
        .map(|((expression, ours), line)| format!("{expression}: {line} there, {ours} here"))
        .collect();
    assert_eq!(lines.lines().count(), expected.len());
    assert!(expected.len() > 1000, "only {} compared", expected.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
