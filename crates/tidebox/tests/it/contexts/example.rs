//! Example of a notebook: a table is loaded, grouped and plotted, and the figure looked at.

use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::run;
use crate::programs::has_module;
use crate::server::{NATIVE, TestServer};

const TABLE: &str = "city,month,rain\nBergen,1,240\nBergen,2,180\nRome,1,70\nRome,2,75\n";
const PLOT: &str = "
import matplotlib.pyplot as plt
sums.plot(kind='bar', color='#0000ff')
plt.title('Rain')
plt.show()
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_is_loaded_grouped_and_plotted_and_the_figure_shows_its_bars() {
    if !["pandas", "matplotlib", "PIL"].into_iter().all(has_module) {
        return;
    }
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    server.write(&id, "/workspace/rain.csv", TABLE).await;
    let code = "import pandas as pd\ntable = pd.read_csv('/workspace/rain.csv')\ntable";
    let table = run(&server, &id, "python", code).await;
    let data = &table.first("result")["data"];
    assert!(data["text/html"].as_str().unwrap().contains("<td>Bergen</td>"), "{table:?}");
    assert_eq!(data["application/vnd.tidebox.frame+json"]["rain"], serde_json::json!([240, 180, 70, 75]));
    let sums = run(&server, &id, "python", "sums = table.groupby('city').rain.sum()\nsums").await;
    assert!(sums.value().contains("Bergen    420"), "{sums:?}");

    let plot = run(&server, &id, "python", PLOT).await;
    let results: Vec<_> = plot.all("result").collect();
    assert_eq!(results.len(), 1, "{results:?}");
    let data = &results[0]["data"];
    let chart = &data["application/vnd.tidebox.chart+json"];
    assert_eq!((&chart["type"], &chart["title"]), (&"bar".into(), &"Rain".into()), "{chart}");
    let values: Vec<_> = chart["elements"].as_array().unwrap().iter().map(|bar| bar["value"].as_f64()).collect();
    assert_eq!(values, [Some(420.0), Some(145.0)], "{chart}");

    // Looked at as a person does: a white page with two blue bars, the left one almost three times as high.
    let png = BASE64.decode(data["image/png"].as_str().unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("figure.png");
    std::fs::write(&file, png).unwrap();
    let script = "import sys, PIL.Image\n\
                  image = PIL.Image.open(sys.argv[1]).convert('RGB')\n\
                  width, height = image.size\n\
                  blue = [sum(image.getpixel((x, y)) == (0, 0, 255) for y in range(height)) for x in range(width)]\n\
                  print(max(blue[:width // 2]), max(blue[width // 2:]), image.getpixel((1, 1)))";
    let seen = Command::new("/usr/bin/python3").args(["-c", script]).arg(&file).output().unwrap();
    let seen = String::from_utf8(seen.stdout).unwrap();
    let [left, right, rest] = seen.trim().splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{seen}") };
    let (left, right): (f64, f64) = (left.parse().unwrap(), right.parse().unwrap());
    assert!((2.7..3.1).contains(&(left / right)) && rest == "(255, 255, 255)", "{seen}");
}
