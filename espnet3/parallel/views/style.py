"""The style sheet of a report: the colours of its charts too, in light and in dark."""

from __future__ import annotations

STYLE = """
:root{--fg:#1c2128;--bg:#fff;--dim:#59636e;--line:#d5dbe1;--card:#f5f7f9;--work:#2f6fb3;--launch:#b9a3d9;--env:#d99a2b;
--idle:#c9d1d9;--alive:#2f9e6e;--lost:#c93c37}
@media (prefers-color-scheme:dark){:root{--fg:#e2e7ec;--bg:#14181d;--dim:#9aa5b1;--line:#323a43;--card:#1d232a;
--work:#5b9be0;--launch:#8f7bb5;--env:#d9a441;--idle:#4b5661;--alive:#4cbf8c;--lost:#e5645e}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:920px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--line)}
h3{font-size:.95rem;margin:1rem 0 .3rem}
p{margin:.5rem 0}.dim{color:var(--dim);font-size:.88rem;overflow-wrap:anywhere}
.note{border-left:3px solid var(--env);padding-left:10px}
.conclusions{background:var(--card);border-radius:8px;padding:14px 16px 14px 36px;margin:16px 0}
.conclusions li{margin:.3rem 0}
code,pre{font:13px/1.45 ui-monospace,Menlo,Consolas,monospace}code{overflow-wrap:anywhere}
pre{background:var(--card);border-radius:6px;padding:10px;overflow-x:auto}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(105px,1fr));gap:10px}
.tiles div{background:var(--card);border-radius:8px;padding:10px 12px;display:flex;flex-direction:column}
.tiles strong{font-size:1.15rem}.tiles span{color:var(--dim);font-size:.85rem}
svg{width:100%;height:auto;display:block}
svg text{fill:var(--dim);font:11px system-ui,sans-serif}svg .end{text-anchor:end}svg .middle{text-anchor:middle}
.grid{stroke:var(--line);stroke-width:1}.area{fill:var(--work);fill-opacity:.75}
rect.work{fill:var(--work)}.point{fill:var(--work);fill-opacity:.45}rect.launch{fill:var(--launch)}rect.env{fill:var(--env)}rect.idle{fill:var(--idle)}
rect.alive{fill:var(--alive)}rect.lost{fill:var(--lost)}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.85rem;color:var(--dim)}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px}
i.work{background:var(--work)}i.launch{background:var(--launch)}i.env{background:var(--env)}
i.idle{background:var(--idle)}i.alive{background:var(--alive)}i.lost{background:var(--lost)}
.wide{overflow-x:auto}.wide table{min-width:34rem}table{border-collapse:collapse;width:100%;font-size:.88rem}
th{text-align:left;color:var(--dim);font-weight:600}
th,td{padding:4px 10px 4px 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
td:first-child{white-space:nowrap}
details{margin:.4rem 0}summary{cursor:pointer}summary:focus-visible{outline:2px solid var(--work);outline-offset:2px}
"""
